#!/usr/bin/env bash
# Brings the objects of an installation with an embedded etcd back to those of a snapshot. All replicas stop meanwhile.
# Undelivered events stay. The data that was there is kept on each volume beside the new one.
#
# Usage: hack/restore.sh SNAPSHOT
#   SNAPSHOT  a file by `knative-apiserver snapshot save`
#
# Environment: KUBECTL (kubectl), TIMEOUT of each wait (10m), SKIP_HASH_CHECK=1 where SNAPSHOT is a database that a server
# left, which has no checksum.
set -euo pipefail

[[ $# -eq 1 && -s ${1:-} ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
snapshot=$1
read -ra kubectl <<<"${KUBECTL:-kubectl}"
timeout=${TIMEOUT:-10m}
k() { "${kubectl[@]}" -n knative-system "$@"; }

replicas=$(k get statefulset knative-apiserver -o 'jsonpath={.spec.replicas}')
image=$(k get statefulset knative-apiserver -o 'jsonpath={.spec.template.spec.containers[0].image}')
# Stopped by an earlier run that failed: as many as there are volumes.
[[ $replicas -gt 0 ]] || replicas=$(k get persistentvolumeclaims -o name | grep -c '/data-knative-apiserver-[0-9]*$')

# maintain ORDINAL COMMAND... runs a command of the server's on a replica's volume. One that ends with - gets our standard input.
maintain() {
	local ordinal=$1 pod=knative-apiserver-maintenance-$1 args stdin=false exit_code
	shift
	[[ ${*: -1} != - ]] || stdin=true
	args=$(printf ', "%s"' "$@")
	k delete pod "$pod" --ignore-not-found >&2
	k apply -f - >&2 <<-POD
		apiVersion: v1
		kind: Pod
		metadata:
		  name: $pod
		spec:
		  restartPolicy: Never
		  automountServiceAccountToken: false
		  securityContext:
		    runAsNonRoot: true
		    runAsUser: 65532
		    runAsGroup: 65532
		    fsGroup: 65532
		    seccompProfile: {type: RuntimeDefault}
		  containers:
		  - name: maintenance
		    image: $image
		    args: [${args:2}, --data-dir=/var/lib/knative-apiserver]
		    stdin: $stdin
		    stdinOnce: $stdin
		    securityContext:
		      allowPrivilegeEscalation: false
		      readOnlyRootFilesystem: true
		      capabilities: {drop: [ALL]}
		    volumeMounts:
		    - {name: data, mountPath: /var/lib/knative-apiserver}
		    - {name: tmp, mountPath: /tmp}
		  volumes:
		  - name: data
		    persistentVolumeClaim: {claimName: data-knative-apiserver-$ordinal}
		  - name: tmp
		    emptyDir: {}
	POD
	if [[ $stdin == true ]]; then
		k wait pod "$pod" --for=condition=Ready --timeout="$timeout" >&2
		# What became of it is in the Pod's status, also where the connection ends early.
		k attach -i "$pod" >&2 || true
	fi
	exit_code='{.status.containerStatuses[0].state.terminated.exitCode}'
	k wait pod "$pod" --for=jsonpath="$exit_code" --timeout="$timeout" >&2
	k logs "$pod" >&2
	[[ $(k get pod "$pod" -o "jsonpath=$exit_code") == 0 ]] || exit 1
	k delete pod "$pod" >&2
}

k scale statefulset knative-apiserver --replicas=0
k wait pod -l app.kubernetes.io/name=knative-apiserver,app.kubernetes.io/component=server --for=delete --timeout="$timeout"
host=knative-apiserver-0.knative-apiserver-peers.knative-system.svc.cluster.local
maintain 0 snapshot restore --name=knative-apiserver-0 --replace --peer-url="https://$host:2380" \
	${SKIP_HASH_CHECK:+--skip-hash-check} - <"$snapshot"
# Without it, one of the others that starts first would make a cluster of its own.
k apply -f - <<-RECORD
	apiVersion: v1
	kind: ConfigMap
	metadata:
	  name: knative-apiserver-etcd
	data:
	  record.json: '{"bootstrap": {"name": "knative-apiserver-0", "peerURL": "https://$host:2380", "clientURL": "https://$host:2379"}}'
RECORD
for ((i = 1; i < replicas; i++)); do
	maintain "$i" snapshot discard
done
k scale statefulset knative-apiserver --replicas="$replicas"
k rollout status statefulset knative-apiserver --timeout="$timeout"
