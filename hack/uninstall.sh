#!/usr/bin/env bash
# Removes the server from the cluster of the current context, with everything that was made with it: all Services,
# Configurations, Routes, Revisions, Brokers, Triggers, Channels and Subscriptions of all namespaces, what runs because of them, the
# data, and the namespace knative-system. Save what is to be kept first; docs/operations.md says how.
#
# The order is what keeps namespaces from getting stuck: objects while their API is served, then what they own, then the
# registrations of the API groups, then the server.
#
# Usage: hack/uninstall.sh
#
# Environment: KUBECTL (kubectl), TIMEOUT of each wait (5m).
set -euo pipefail

[[ $# -eq 0 ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
read -ra kubectl <<<"${KUBECTL:-kubectl}"
timeout=${TIMEOUT:-5m}
label=app.kubernetes.io/part-of=knative-apiserver

k() { "${kubectl[@]}" "$@"; }
say() { echo "$*" >&2; }

# served GROUP: whether the host reaches us for it. A group that a CustomResourceDefinition defines is not ours.
served() {
	[[ $(k get apiservice "v1.$1" --ignore-not-found \
		-o 'jsonpath={.spec.service.name} {.status.conditions[?(@.type=="Available")].status}') == "knative-apiserver True" ]]
}

# owned prints "kind namespace name" of Deployments and Services that one of our objects owns.
owned() {
	k get deployments.apps,services -A -o go-template='{{range .items}}{{$o := .}}{{range .metadata.ownerReferences}}{{if or (eq .apiVersion "serving.knative.dev/v1") (eq .apiVersion "messaging.knative.dev/v1")}}{{$o.kind}} {{$o.metadata.namespace}} {{$o.metadata.name}}{{"\n"}}{{end}}{{end}}{{end}}'
}

# Senders before receivers, and owners before what they own.
for kind in triggers.eventing subscriptions.messaging brokers.eventing channels.messaging \
	services.serving configurations.serving routes.serving revisions.serving; do
	if served "${kind#*.}.knative.dev"; then
		k delete "$kind.knative.dev" --all -A --timeout="$timeout"
	else
		say "$kind.knative.dev is not served: its objects go with the data"
	fi
done

# The garbage collector removes what they own, if their API still tells it that they are gone.
if served serving.knative.dev; then
	deadline=$((SECONDS + 60))
	while [[ -n $(owned) && $SECONDS -lt $deadline ]]; do sleep 1; done
fi
k delete apiservices -l "$label" --ignore-not-found --timeout="$timeout"
owned | while read -r kind namespace name; do
	k -n "$namespace" delete "$kind" "$name" --ignore-not-found --timeout="$timeout" </dev/null
done

# A namespace in which Pods still end is looked at again only after half of the time that they may take.
k get namespaces -l "$label" -o name | while read -r namespace; do
	k -n "${namespace#*/}" delete statefulsets,deployments --all --cascade=foreground --timeout="$timeout" </dev/null
done
k delete namespaces -l "$label" --ignore-not-found --timeout="$timeout"
k -n kube-system delete rolebindings -l "$label" --ignore-not-found
k delete clusterrolebindings,clusterroles,flowschemas,prioritylevelconfigurations -l "$label" --ignore-not-found --timeout="$timeout"
