#!/usr/bin/env bash
# Runs the standalone server until interrupted. Once it is ready, applies the sample Service, prints its
# address, and sends it one request.
#
# Usage: hack/run.sh FLAG...   more flags of `knative-apiserver standalone`
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
kubectl=$(command -v kubectl || echo "$(go -C "$root/hack/cluster" run . build kubectl)/kubectl")

coproc server { exec "$root/bin/knative-apiserver" standalone "$@" 2>&3; } 3>&2
pid=$server_PID
trap 'kill -TERM "$pid" 2>/dev/null; wait "$pid"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# follow FD prints what the server prints, up to the line that tells where its kubeconfig is.
ready='^knative-apiserver is ready at [^ ]+, kubeconfig ([^ ]+)'
KUBECONFIG=
while [[ -z $KUBECONFIG ]] && read -r line <&"${server[0]}"; do
	echo "$line"
	[[ $line =~ $ready ]] && export KUBECONFIG=${BASH_REMATCH[1]}
done
[[ -n $KUBECONFIG ]] || exit 1

"$kubectl" apply -f "$root/artifacts/samples/hello.yaml"
"$kubectl" wait ksvc/hello --for=condition=Ready --timeout=60s
url=$("$kubectl" get ksvc hello -o jsonpath='{.status.url}')
echo "curl $url"
curl --silent --show-error --fail "$url"
wait "$pid"
