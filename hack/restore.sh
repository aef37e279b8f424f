#!/usr/bin/env bash
# Restores the objects of an installation with an embedded etcd from a snapshot. All replicas are stopped meanwhile.
# Undelivered events are kept. The previous data stays on each volume, in a directory beside the new one.
#
# Restored objects get new UIDs: the garbage collector of the cluster remembers the UIDs of deleted owners, and would delete
# what they own. Objects of the cluster that they own, such as Deployments, and undelivered events stay with them.
#
# Usage: hack/restore.sh SNAPSHOT
#        hack/restore.sh --volumes
#   SNAPSHOT   a file by `knative-apiserver snapshot save`
#   --volumes  all volumes were replaced by snapshots of volumes, while the StatefulSet was scaled to zero
#
# Environment: KUBECTL (kubectl), TIMEOUT of each wait (10m), SKIP_HASH_CHECK=1 where SNAPSHOT is a database that a server
# left, which has no checksum.
set -euo pipefail

[[ $# -eq 1 ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
snapshot=$1
[[ -s $1 || $1 == --volumes ]] || { echo "restore.sh: $1 is not a file with a snapshot" >&2; exit 2; }
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
# Servers that start give all objects new UIDs, once for each ID.
id=$(od -An -N5 -tx1 /dev/urandom | tr -d ' \n')
mark_restored() {
	k apply -f - <<-RESTORE
		apiVersion: v1
		kind: ConfigMap
		metadata:
		  name: knative-apiserver-restore
		data:
		  id: "$id"
	RESTORE
}
# adopt rewrites the owner references of all objects of the cluster that belong to objects of this server. Servers do so for the
# Deployments and core Services they created, and may not touch others. While the API is not served, the garbage collector deletes none of them.
adopt() {
	local resource namespace name index version kind uid patch
	# This server does not serve all kinds of these groups: others define channels, for example. Such objects may belong to objects of
	# this server, and own others.
	local owners='serving\.knative\.dev/[^ ]+ (Service|Route|Configuration|Revision|DomainMapping)|eventing\.knative\.dev/[^ ]+ (Broker|EventPolicy|Trigger)'
	owners+='|messaging\.knative\.dev/[^ ]+ (Channel|Subscription)'
	local ours='(brokers|eventpolicies|eventruns|triggers)\.eventing|(channels|subscriptions)\.messaging|(configurations|domainmappings|revisions|routes|services)\.serving'
	local template='{{range .items}}{{$o := .metadata}}{{range $i, $r := .metadata.ownerReferences}}'
	template+='{{$o.namespace}} {{$o.name}} {{$i}} {{$r.apiVersion}} {{$r.kind}} {{$r.uid}}{{"\n"}}{{end}}{{end}}'
	# Groups that are not available are an error.
	for resource in $("${kubectl[@]}" api-resources --namespaced --verbs=list,patch -o name 2>/dev/null |
		grep -vE "^(pods|events|events\.events\.k8s\.io|endpoints|endpointslices\..*|deployments\.apps|replicasets\.apps|services|($ours)\.knative\.dev)$"); do
		while read -r namespace name index version kind uid; do
			[[ "$version $kind" =~ ^($owners)$ ]] || continue
			patch='[{"op": "test", "path": "/metadata/ownerReferences/'$index'/uid", "value": "'$uid'"},'
			patch+=' {"op": "replace", "path": "/metadata/ownerReferences/'$index'/uid", "value": "'${uid:0:36}-r$id'"}]'
			"${kubectl[@]}" -n "$namespace" patch "$resource" "$name" --type=json -p "$patch" ||
				echo "restore.sh: $resource $namespace/$name still has its former owner; the garbage collector may delete it" >&2
		done < <("${kubectl[@]}" get "$resource" -A --chunk-size=500 -o go-template="$template")
	done
}
start() {
	k scale statefulset knative-apiserver --replicas="$replicas"
	k rollout status statefulset knative-apiserver --timeout="$timeout"
}
if [[ $snapshot == --volumes ]]; then
	mark_restored
	adopt
	start
	# Gateways would watch from a resource version that is later than the objects have, and miss changes until then.
	if [[ -n $(k get deployment knative-gateway --ignore-not-found -o name) ]]; then
		k rollout restart deployment knative-gateway
		k rollout status deployment knative-gateway --timeout="$timeout"
	fi
	exit
fi
domain=$(k get statefulset knative-apiserver -o 'jsonpath={.spec.template.spec.containers[0].args}' |
	sed -n 's/.*"--cluster-domain=\([^"]*\)".*/\1/p')
host=knative-apiserver-0.knative-apiserver-peers.knative-system.svc.${domain:-cluster.local}
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
mark_restored
adopt
start
