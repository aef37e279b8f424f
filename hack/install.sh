#!/usr/bin/env bash
# Installs or upgrades the server on the cluster of the current context, and waits until its API groups are available.
# Replicas are replaced one at a time, each only when all are available. Between combined and default, the gateway moves
# without an interruption.
#
# Usage: hack/install.sh IMAGE [VARIANT]
#   IMAGE    the server's image, by digest at best: registry.example/knative-apiserver@sha256:...
#   VARIANT  default, combined, single or split, or a directory with a kustomization.yaml that builds on one of them
#
# Environment: KUBECTL (kubectl), TIMEOUT of each wait (10m), FORCE=1 to replace replicas while others are unavailable,
# SERVER_FLAGS with more flags of the server, separated by spaces: --allow-destination=10.0.0.5/32. They may change --shutdown-delay-duration.
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
[[ $# -ge 1 && $# -le 2 && ${1:-} != -* ]] || usage
image=$1
variant=${2:-default}
read -ra kubectl <<<"${KUBECTL:-kubectl}"
timeout=${TIMEOUT:-10m}
dir=$variant
[[ -e $variant/kustomization.yaml ]] || dir=$(dirname "$0")/../artifacts/install/$variant
[[ -e $dir/kustomization.yaml ]] || { echo "no kustomization.yaml in $variant, and no such variant" >&2; exit 2; }
[[ $image =~ ^[A-Za-z0-9][A-Za-z0-9._:/@-]*$ ]] || { echo "$image is not the name of an image" >&2; exit 2; }

read -ra flags <<<"${SERVER_FLAGS:-}"
for flag in "${flags[@]}"; do
	[[ $flag =~ ^--[a-z0-9-]+(=[A-Za-z0-9._:/,@-]*)?$ ]] || { echo "SERVER_FLAGS: $flag is not a flag of the form --name=value" >&2; exit 2; }
done

k() { "${kubectl[@]}" "$@"; }
unavailable="FORCE=1 replaces them nevertheless."
source "$(dirname "$0")/replicas.sh"

crds=$(k get customresourcedefinitions -o name | grep -E '\.(serving|eventing|messaging|networking\.internal)\.knative\.dev$' || true)
if [[ -n $crds ]]; then
	# Kinds of other components in these groups may remain CRDs. The server itself checks the versions; this is only a hint.
	say "The cluster has CustomResourceDefinitions in the API groups of the server:" $crds
	say "The server does not start if one of them has the same version: see docs/operations.md for the migration."
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
k kustomize "$dir" | sed "s|^\( *\(- \)\{0,1\}\)image: knative-apiserver\$|\1image: $image|" |
	awk -v flags="${flags[*]}" '{ print } /^ *- --system-namespace=/ { n = split(flags, all, " "); sub(/--.*/, ""); for (i = 1; i <= n; i++) print $0 all[i] }' >"$work/all.yaml"
# all.yaml in parts: registrations of API groups, the StatefulSet, the gateways of their own with their autoscaler, and the rest.
# Register an API group when it is served: otherwise discovery, and thus the deletion of namespaces, fails in between.
touch "$work"/{registrations,server,gateway,rest}.yaml
awk -v dir="$work" '
	function flush() {
		part = kind == "APIService" ? "registrations" : kind == "StatefulSet" ? "server" : "rest"
		if (name == "knative-gateway" && (kind == "Deployment" || kind == "HorizontalPodAutoscaler")) part = "gateway"
		if (doc != "") printf "---\n%s", doc > (dir "/" part ".yaml")
		doc = kind = name = ""
	}
	/^---$/ { flush(); next }
	/^kind: / { kind = $2 }
	/^  name: / && name == "" { name = $2 }
	{ doc = doc $0 "\n" }
	END { flush() }' "$work/all.yaml"

apply() { k apply --server-side --force-conflicts --field-manager=knative-apiserver-install -f "$1"; }
has() { [[ -s $work/$1.yaml ]]; }
# of KIND NAME JSONPATH prints a field of an object of the system namespace, or nothing if the object does not exist.
of() { k -n knative-system get "$1" "$2" --ignore-not-found -o "jsonpath={$3}"; }

# applyServer is the step to the manifest, setImage the step to the image only.
applyServer() {
	sed "s/^      partition: 0\$/      partition: $1/" "$work/server.yaml" >"$work/step.yaml"
	apply "$work/step.yaml" >/dev/null
}
setImage() {
	k -n knative-system patch statefulset knative-apiserver --type=strategic -p "{\"spec\":{\"updateStrategy\":{\"rollingUpdate\":{\"partition\":$1}},\"template\":{\"spec\":{\"containers\":[{\"name\":\"knative-apiserver\",\"image\":\"$image\"}]}}}}" >/dev/null
}

# replaceServer STEP replaces the replicas of the StatefulSet. A single replica is always replaced, and added replicas wait for it.
replaceServer() {
	local replicas
	replicas=$(of statefulset knative-apiserver .spec.replicas)
	if [[ ${replicas:-0} -gt 1 && -z ${FORCE:-} ]]; then
		stepwise "$replicas" "$1"
	else
		"$1" 0
		rollout statefulset/knative-apiserver
	fi
}

# applyGateway applies the gateways of their own, as many as their autoscaler has chosen, and waits until they serve.
applyGateway() {
	local replicas=""
	if grep -q '^kind: HorizontalPodAutoscaler$' "$work/gateway.yaml"; then
		replicas=$(of deployment knative-gateway .spec.replicas)
	fi
	sed ${replicas:+-e "s/^  replicas: [0-9]*\$/  replicas: $replicas/"} -e '' "$work/gateway.yaml" >"$work/step.yaml"
	apply "$work/step.yaml"
	rollout deployment/knative-gateway
}

# awaitEndpoints waits until both Services of the gateway have all Pods of the Deployment as endpoints.
awaitEndpoints() {
	local deadline=$((SECONDS + 120)) service ready pod missing
	while :; do
		missing=""
		for service in gateway gateway-internal; do
			ready=$(k -n knative-system get endpointslices -l "kubernetes.io/service-name=$service" \
				-o 'jsonpath={range .items[*].endpoints[?(@.conditions.ready==true)]}{.targetRef.name}{"\n"}{end}')
			for pod in $(k -n knative-system get pods -l app.kubernetes.io/component=gateway \
				-o 'go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.metadata.name}}{{"\n"}}{{end}}{{end}}'); do
				grep -qx "$pod" <<<"$ready" || missing+=" $service:$pod"
			done
		done
		[[ -n $missing ]] || return 0
		[[ $SECONDS -lt $deadline ]] || { say "no endpoints of:$missing"; return 1; }
		sleep 1
	done
}

# removeGateway deletes the objects of gateways that the manifests do not contain, because the other layout has them. Gateways that stop
# keep their identity until no request is in flight.
removeGateway() {
	local rbac=rbac.authorization.k8s.io label=app.kubernetes.io/part-of=knative-apiserver,app.kubernetes.io/component=gateway namespace object
	awk '/^kind: / { kind = tolower($2) } /^  name: / && name == "" { name = $2 } /^---$/ { print kind "/" name; kind = name = "" } END { print kind "/" name }' "$work/all.yaml" >"$work/names"
	{
		k -n knative-system get deployments.apps -l "$label" -o name | sed 's/^/knative-system /'
		k -n knative-system get "horizontalpodautoscalers.autoscaling,poddisruptionbudgets.policy,rolebindings.$rbac,roles.$rbac,serviceaccounts" -l "$label" -o name |
			sed 's/^/knative-system /'
		k -n kube-system get "rolebindings.$rbac" -l "$label" -o name | sed 's/^/kube-system /'
		k get "clusterrolebindings.$rbac,clusterroles.$rbac" -l "$label" -o name | sed 's/^/default /'
	} >"$work/objects"
	while read -r namespace object; do
		grep -Fqx "$(sed 's|\.[^/]*/|/|' <<<"$object")" "$work/names" ||
			k -n "$namespace" delete "$object" --ignore-not-found --cascade=foreground --timeout="$timeout" </dev/null
	done <"$work/objects"
}

apply "$work/rest.yaml"
# A gateway that moves from the StatefulSet to Pods of its own serves there before the first replica without a gateway starts. Until then it
# joins replicas of the same version: they know gateways without the other components.
if has gateway && has server && [[ $(of statefulset knative-apiserver '.spec.template.metadata.labels.knative-apiserver/gateway') == true ]]; then
	current=$(of statefulset knative-apiserver '.spec.template.spec.containers[?(@.name=="knative-apiserver")].image')
	if [[ $current != "$image" ]]; then
		say "upgrading before the gateway moves"
		replaceServer setImage
	fi
	applyGateway
	awaitEndpoints
fi
if has server; then replaceServer applyServer; fi

server=$(k -n knative-system get statefulset,deployment -o name | grep '/knative-apiserver$')
rollout "$server"
apply "$work/registrations.yaml"
k wait --for=condition=Available --timeout="$timeout" -f "$work/registrations.yaml"
if has gateway; then applyGateway; fi
removeGateway
for workload in $(k -n knative-system get statefulset,deployment -l app.kubernetes.io/part-of=knative-apiserver -o name); do
	[[ $workload == "$server" ]] || rollout "$workload"
done
