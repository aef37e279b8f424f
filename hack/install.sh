#!/usr/bin/env bash
# Installs or upgrades the server on the cluster of the current context, and waits until its API groups are available.
# Replicas are replaced one at a time, each only when all are available.
#
# Usage: hack/install.sh IMAGE [VARIANT]
#   IMAGE    the server's image, by digest at best: registry.example/knative-apiserver@sha256:...
#   VARIANT  default, single or split, or a directory with a kustomization.yaml that builds on one of them
#
# Environment: KUBECTL (kubectl), TIMEOUT of each wait (10m), FORCE=1 to replace replicas while others are unavailable,
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
	# Kinds of other components in these groups may remain CRDs. The server itself checks the versions; this is only a hint.
	say "The cluster has CustomResourceDefinitions in the API groups of the server:" $crds
	say "The server does not start if one of them has the same version: see docs/operations.md for the migration."
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
k kustomize "$dir" | sed "s|^\( *\(- \)\{0,1\}\)image: knative-apiserver\$|\1image: $image|" |
	awk -v flags="${flags[*]}" '{ print } /^ *- --system-namespace=/ { n = split(flags, all, " "); sub(/--.*/, ""); for (i = 1; i <= n; i++) print $0 all[i] }' >"$work/all.yaml"
# Register an API group when it is served: otherwise discovery, and thus the deletion of namespaces, fails in between.
awk -v dir="$work" '
	function flush() { if (doc != "") printf "---\n%s", doc > (dir "/" (registration ? "registrations" : "rest") ".yaml"); doc = ""; registration = 0 }
	/^---$/ { flush(); next }
	/^kind: APIService$/ { registration = 1 }
	{ doc = doc $0 "\n" }
	END { flush() }' "$work/all.yaml"

apply() { k apply --server-side --force-conflicts --field-manager=knative-apiserver-install -f "$1"; }

# replace applies the manifests so that the replicas of the StatefulSet are replaced one after the other, beginning with the last.
# The StatefulSet's controller only waits for replaced replicas, not for replicas that it will replace next.
replace() {
	local replicas=$1 partition pod
	for ((pod = 0; pod < replicas - 1; pod++)); do
		k -n knative-system wait pod "knative-apiserver-$pod" --for=condition=Ready --timeout="$timeout" >&2 || {
			say "No replica is replaced while another is unavailable; FORCE=1 overrides this."
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

# A single replica is always replaced, and added replicas wait for it.
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
