#!/usr/bin/env bash
# Runs the standalone server until interrupted. Once it is ready, applies the samples of Serving, prints the address
# of the Service and sends one request to it; then applies the samples of Eventing, sends one event each to the Broker and the
# Channel, and prints where the events and the replies to them arrive. Fails if they do not arrive.
#
# Usage: hack/run.sh FLAG...   more flags of `knative-apiserver standalone`
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
samples=$root/artifacts/samples
kubectl=$(command -v kubectl || echo "$(go -C "$root/hack/cluster" run . build kubectl)/kubectl")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# The destination of the Trigger with a uri: a program that prints the events it receives.
go -C "$root" build -o "$tmp/sink" ./test/app

coproc server { exec "$root/bin/knative-apiserver" standalone "$@" 2>&3; } 3>&2
pid=$server_PID
sink_log=$tmp/sink.log
PORT=0 "$tmp/sink" >"$sink_log" &
sink=$!
trap 'kill -TERM "$pid" "$sink" 2>/dev/null || true; wait "$pid" "$sink" || true; rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# found PATTERN PATH waits for a matching line in the file, or in the files of the directory, and prints the first one.
found() {
	for ((try = 0; try < 300; try++)); do
		grep --recursive --no-filename --max-count=1 --regexp="$1" "$2" 2>/dev/null && return
		sleep 0.1
	done
	echo "nothing matches '$1' in $2 after 30 seconds" >&2
	return 1
}

# arrived WHERE ID PATH prints the line that an application logs about an event.
arrived() {
	local line
	line=$(found "\"id\": *\"$2\"" "$3")
	echo "$1 got $line"
}

# send ID URL sends an event.
send() {
	echo "event $1 to $2"
	curl --silent --show-error --fail "$2" -H 'Ce-Specversion: 1.0' -H "Ce-Id: $1" -H 'Ce-Source: /make/run' \
		-H 'Ce-Type: com.example.greeting' -H 'Content-Type: application/json' --data '{"text": "hello"}'
}

field() { "$kubectl" get "$1" -o jsonpath="{.status.$2}"; }

ready='^knative-apiserver is ready at [^ ]+, kubeconfig ([^ ]+)'
KUBECONFIG=
while [[ -z $KUBECONFIG ]] && read -r line <&"${server[0]}"; do
	echo "$line"
	[[ $line =~ $ready ]] && export KUBECONFIG=${BASH_REMATCH[1]}
done
[[ -n $KUBECONFIG ]] || exit 1

"$kubectl" apply -f "$samples/hello.yaml"
"$kubectl" wait ksvc/hello --for=condition=Ready --timeout=60s
url=$(field ksvc/hello url)
echo "curl $url"
curl --silent --show-error --fail "$url"

sink_url=$(found listening "$sink_log" | grep --only-matching 'http://[^"]*')
sed "s|http://localhost:9000/|$sink_url|" "$samples/trigger-uri.yaml" | "$kubectl" apply \
	-f "$samples/broker.yaml" -f "$samples/trigger.yaml" -f "$samples/channel.yaml" -f "$samples/subscription.yaml" -f -
"$kubectl" wait broker/default trigger/hello trigger/log channel/greetings subscription/hello --for=condition=Ready --timeout=60s
logs=$(field "revision/$(field ksvc/hello latestReadyRevisionName)" logUrl)
run=$(date +%s)
send "broker-$run" "$(field broker/default address.url)"
arrived 'Trigger hello: the Service' "broker-$run" "${logs#file://}"
arrived 'Trigger log: the uri' "broker-$run" "$sink_log"
arrived 'Trigger log: the uri' "reply-to-broker-$run" "$sink_log"
send "channel-$run" "$(field channel/greetings address.url)"
arrived 'Subscription hello: the Service' "channel-$run" "${logs#file://}"
arrived 'Subscription hello, reply to the Broker, Trigger log: the uri' "reply-to-channel-$run" "$sink_log"
wait "$pid"
