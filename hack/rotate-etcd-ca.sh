#!/usr/bin/env bash
# Replaces the authority of the etcd members, in the Secret knative-apiserver-etcd-ca, on the cluster of the current context. A member reads
# the authorities that it trusts only when it starts, so all replicas are replaced twice, one at a time, each only when all others are available:
# once to trust the next authority too, and once more, after it signs, to distrust the former one.
#
# If it fails, run it again: it continues with the step that failed.
#
# Usage: hack/rotate-etcd-ca.sh
#
# Environment: KUBECTL (kubectl), TIMEOUT of each wait (10m)
set -euo pipefail
umask 077

[[ $# -eq 0 ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
read -ra kubectl <<<"${KUBECTL:-kubectl}"
timeout=${TIMEOUT:-10m}
secret=knative-apiserver-etcd-ca
# pending is an annotation of the Secret: the former authority is gone, and replicas that trust it are left.
pending=knative-apiserver/replace-replicas

k() { "${kubectl[@]}" "$@"; }
source "$(dirname "$0")/replicas.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# field JSONPATH prints a field of the Secret, change PATCH changes the Secret by a JSON merge patch. The patch may have a key: it is in a file.
field() { k -n knative-system get secret "$secret" -o "jsonpath={$1}"; }
change() {
	printf '%s' "$1" >"$work/patch"
	k -n knative-system patch secret "$secret" --type=merge --patch-file="$work/patch" >&2
}

# replaceReplicas replaces all replicas of the StatefulSet. restart is its step.
restart() {
	k -n knative-system patch statefulset knative-apiserver --type=strategic -p "{\"spec\":{\"updateStrategy\":{\"rollingUpdate\":{\"partition\":$1}},\"template\":{\"metadata\":{\"annotations\":{\"kubectl.kubernetes.io/restartedAt\":\"$restartedAt\"}}}}}" >/dev/null
}
replaceReplicas() {
	local replicas
	restartedAt=$(date -u +%Y-%m-%dT%H:%M:%SZ)
	replicas=$(k -n knative-system get statefulset knative-apiserver -o 'jsonpath={.spec.replicas}')
	stepwise "$replicas" restart
}

stage=$(field ".metadata.annotations['$pending']")
if [[ -z $stage ]]; then
	next=$(field '.data.next\.crt')
	if [[ -z $next ]]; then
		say "creating the next authority"
		openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$work/next.key"
		openssl req -x509 -new -key "$work/next.key" -sha256 -days 3650 -out "$work/next.crt" -config <(
			printf '%s\n' '[req]' 'prompt = no' 'distinguished_name = name' 'x509_extensions = authority' \
				'[name]' "CN = $secret" \
				'[authority]' 'basicConstraints = critical, CA:TRUE, pathlen:0' 'keyUsage = critical, keyCertSign' 'subjectKeyIdentifier = hash'
		)
		field '.data.ca\.crt' | openssl base64 -d -A >"$work/ca.crt"
		cat "$work/next.crt" >>"$work/ca.crt"
		next=$(openssl base64 -A -in "$work/next.crt")
		key=$(openssl base64 -A -in "$work/next.key")
		trusted=$(openssl base64 -A -in "$work/ca.crt")
		change "{\"data\":{\"next.crt\":\"$next\",\"next.key\":\"$key\",\"ca.crt\":\"$trusted\"}}"
	fi
	say "replacing the replicas, to trust the next authority"
	replaceReplicas
	say "changing to the next authority"
	key=$(field '.data.next\.key')
	change "{\"metadata\":{\"annotations\":{\"$pending\":\"true\"}},\"data\":{\"tls.crt\":\"$next\",\"tls.key\":\"$key\",\"ca.crt\":\"$next\",\"next.crt\":null,\"next.key\":null}}"
fi
say "replacing the replicas, to distrust the former authority"
replaceReplicas
change "{\"metadata\":{\"annotations\":{\"$pending\":null}}}"
