#!/usr/bin/env bash
# Removes the server from the cluster of the current context, including all objects created with it: all Services,
# Configurations, Routes, Revisions, Brokers, Triggers, Channels and Subscriptions of all namespaces, their dependents, the
# data, and the namespace knative-system. Make a backup first; see docs/operations.md.
#
# The order prevents stuck namespaces: first objects while their API is served, then their dependents, then the
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

# served VERSION.GROUP reports whether the host forwards the version to the server. CustomResourceDefinitions define other groups.
served() {
	[[ $(k get apiservice "$1" --ignore-not-found \
		-o 'jsonpath={.spec.service.name} {.status.conditions[?(@.type=="Available")].status}') == "knative-apiserver True" ]]
}

# owned prints "kind namespace name" of Deployments and Services whose owner is a Knative object.
owned() {
	k get deployments.apps,services -A -o go-template='{{range .items}}{{$o := .}}{{range .metadata.ownerReferences}}{{if or (eq .apiVersion "serving.knative.dev/v1") (eq .apiVersion "messaging.knative.dev/v1")}}{{$o.kind}} {{$o.metadata.namespace}} {{$o.metadata.name}}{{"\n"}}{{end}}{{end}}{{end}}'
}

# Delete senders before receivers, and owners before dependents.
for kind in eventpolicies.v1alpha1.eventing triggers.v1.eventing subscriptions.v1.messaging brokers.v1.eventing channels.v1.messaging \
	domainmappings.v1beta1.serving clusterdomainclaims.v1alpha1.networking.internal \
	services.v1.serving configurations.v1.serving routes.v1.serving revisions.v1.serving; do
	if served "${kind#*.}.knative.dev"; then
		k delete "$kind.knative.dev" --all -A --timeout="$timeout"
	else
		say "$kind.knative.dev is not served: its objects are removed with the data"
	fi
done

# The garbage collector removes dependents, if the API still reports that their owners are deleted.
if served v1.serving.knative.dev; then
	deadline=$((SECONDS + 60))
	while [[ -n $(owned) && $SECONDS -lt $deadline ]]; do sleep 1; done
fi
k delete apiservices -l "$label" --ignore-not-found --timeout="$timeout"
owned | while read -r kind namespace name; do
	k -n "$namespace" delete "$kind" "$name" --ignore-not-found --timeout="$timeout" </dev/null
done

# The namespace controller rechecks a namespace with terminating Pods only after half of their grace period.
k get namespaces -l "$label" -o name | while read -r namespace; do
	k -n "${namespace#*/}" delete statefulsets,deployments --all --cascade=foreground --timeout="$timeout" </dev/null
done
k delete namespaces -l "$label" --ignore-not-found --timeout="$timeout"
k -n kube-system delete rolebindings -l "$label" --ignore-not-found
k delete validatingadmissionpolicybindings,validatingadmissionpolicies -l "$label" --ignore-not-found --timeout="$timeout"
k delete clusterrolebindings,clusterroles,flowschemas,prioritylevelconfigurations -l "$label" --ignore-not-found --timeout="$timeout"
