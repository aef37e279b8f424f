#!/usr/bin/env bash
# Installs the server on the cluster of the current context, or upgrades it, and waits until its API groups are available.
# Replicas are replaced one at a time, each only when all are available.
#
# Usage: hack/install.sh IMAGE [VARIANT]
#   IMAGE    the server's image, by digest at best: registry.example/knative-apiserver@sha256:...
#   VARIANT  default, single or split, or a directory with a kustomization.yaml that builds on one of them
#
# Environment: KUBECTL (kubectl), TIMEOUT of each wait (10m), FORCE=1 to replace replicas though others are missing,
# SERVER_FLAGS with more flags of the server, separated by spaces: --allow-destination=10.0.0.5/32
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
say() { echo "$*" >&2; }

crds=$(k get customresourcedefinitions -o name | grep -E '\.(serving|eventing|messaging)\.knative\.dev$' || true)
if [[ -n $crds ]]; then
	# Some of the groups' kinds are not ours, and stay CRDs. The server itself looks at versions; here a hint suffices.
	say "The cluster has CustomResourceDefinitions of our API groups:" $crds
	say "The server does not start beside those that have a version in common with it: docs/operations.md says how to migrate."
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
k kustomize "$dir" | sed "s|^\( *\(- \)\{0,1\}\)image: knative-apiserver\$|\1image: $image|" |
	awk -v flags="${flags[*]}" '{ print } /^ *- --system-namespace=/ { n = split(flags, all, " "); sub(/--.*/, ""); for (i = 1; i <= n; i++) print $0 all[i] }' >"$work/all.yaml"
# An API group is registered when it is served: discovery, and with it the deletion of namespaces, fails in between.
awk -v dir="$work" '
	function flush() { if (doc != "") printf "---\n%s", doc > (dir "/" (registration ? "registrations" : "rest") ".yaml"); doc = ""; registration = 0 }
	/^---$/ { flush(); next }
	/^kind: APIService$/ { registration = 1 }
	{ doc = doc $0 "\n" }
	END { flush() }' "$work/all.yaml"

apply() { k apply --server-side --force-conflicts --field-manager=knative-apiserver-install -f "$1"; }

# replace applies the manifests so that one replica of the StatefulSet after the other is replaced, beginning with the last.
# The StatefulSet's controller by itself waits for those it has replaced, but not for those that it has yet to replace.
replace() {
	local replicas=$1 partition pod
	for ((pod = 0; pod < replicas - 1; pod++)); do
		k -n knative-system wait pod "knative-apiserver-$pod" --for=condition=Ready --timeout="$timeout" >&2 || {
			say "While a replica is missing no other one is replaced; FORCE=1 replaces them all the same."
			return 1
		}
	done
	for ((partition = replicas - 1; partition >= 0; partition--)); do
		say "replacing replica $partition, if it differs"
		sed "s/^      partition: 0\$/      partition: $partition/" "$work/rest.yaml" >"$work/step.yaml"
		apply "$work/step.yaml" >/dev/null
		k -n knative-system rollout status statefulset knative-apiserver --timeout="$timeout" >&2
		k -n knative-system wait statefulset knative-apiserver --for="jsonpath={.status.availableReplicas}=$replicas" --timeout="$timeout" >&2
	done
}

# One replica alone is replaced in any case, and waited for by those that are added to it.
replicas=$(k -n knative-system get statefulset knative-apiserver --ignore-not-found -o 'jsonpath={.spec.replicas}')
if [[ ${replicas:-0} -gt 1 && -z ${FORCE:-} ]] && grep -q '^kind: StatefulSet$' "$work/rest.yaml"; then
	replace "$replicas"
else
	apply "$work/rest.yaml"
fi

rollout() { k -n knative-system rollout status "$1" --timeout="$timeout"; }
server=$(k -n knative-system get statefulset,deployment -o name | grep '/knative-apiserver$')
rollout "$server"
apply "$work/registrations.yaml"
k wait --for=condition=Available --timeout="$timeout" -f "$work/registrations.yaml"
for workload in $(k -n knative-system get statefulset,deployment -l app.kubernetes.io/part-of=knative-apiserver -o name); do
	[[ $workload == "$server" ]] || rollout "$workload"
done
