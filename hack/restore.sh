#!/usr/bin/env bash
# Brings the objects of an installation with an embedded etcd back to those of a snapshot. All replicas stop meanwhile.
# Undelivered events stay. The data that was there is kept on each volume beside the new one.
#
# Usage: hack/restore.sh SNAPSHOT
#   SNAPSHOT  a file by `knative-apiserver snapshot save`
#
# Environment: KUBECTL (kubectl), TIMEOUT of each wait (10m).
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

# maintain ORDINAL COMMAND... runs a command of the server's on a replica's volume, with our standard input.
maintain() {
	local ordinal=$1 pod=knative-apiserver-maintenance-$1 args
	shift
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
		    stdin: true
		    stdinOnce: true
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
	k wait pod "$pod" --for=condition=Ready --timeout="$timeout" >&2
	k attach -i "$pod" >&2 || true
	if ! k wait pod "$pod" --for=jsonpath='{.status.phase}'=Succeeded --timeout="$timeout" >&2; then
		k logs "$pod" >&2
		exit 1
	fi
	k delete pod "$pod" >&2
}

k scale statefulset knative-apiserver --replicas=0
k wait pod -l app.kubernetes.io/name=knative-apiserver,app.kubernetes.io/component=server --for=delete --timeout="$timeout"
k delete configmap knative-apiserver-etcd --ignore-not-found
maintain 0 snapshot restore --pod-name=knative-apiserver-0 --replace - <"$snapshot"
for ((i = 1; i < replicas; i++)); do
	maintain "$i" snapshot discard </dev/null
done
k scale statefulset knative-apiserver --replicas="$replicas"
k rollout status statefulset knative-apiserver --timeout="$timeout"
