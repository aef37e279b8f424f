#!/usr/bin/env bash
# Starts a real cluster with a node, tests the variants that are not the default, installs the server as documented in the README, runs the
# end-to-end tests and the benchmarks that require Pods, uninstalls, and stops the cluster. Requires root on Linux.
#
#   hack/e2e.sh [go test flags...]      such as -run TestScaleToZeroAndBack ./test/e2e/serving
#   KEEP=1 hack/e2e.sh                  keeps the cluster and the installation running
#   MEASURE_AFTER=FILE hack/e2e.sh      runs the tests that compare durations when no process locks the file, and allows others more time
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${CLUSTER_DIR:-$PWD/.cache/cluster}

finish() {
	code=$?
	if [[ -n ${KEEP:-} ]]; then
		echo "The cluster is left running: make cluster-down ends it" >&2
	else
		go -C hack/cluster run . down --dir "$dir" || code=1
	fi
	exit "$code"
}
trap finish EXIT

make --no-print-directory cluster CLUSTER_DIR="$dir"
field() { python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$dir/cluster.json" "$1"; }
KUBECONFIG=$(field kubeconfig)
export KUBECONFIG E2E_CLUSTER=$dir/cluster.json
PATH=$(go -C hack/cluster run . build):$PATH
image=$(field registry)/knative-apiserver:e2e
# The registry and the sinks of the tests are on the node, which tenants cannot reach by default. One node removes endpoints faster than many,
# so that replicas may stop sooner.
registry=$(field registry)
export SERVER_FLAGS="--allow-destination=${registry%:*},$(field address) --shutdown-delay-duration=5s"

make --no-print-directory image
make --no-print-directory image-push REF="$image"
# These tests install the server themselves.
(($# > 0)) || E2E_IMAGE=$image go test -count=1 -timeout 20m ./test/e2e/variants
make --no-print-directory install IMAGE="$image"
if (($# > 0)); then
	go test -count=1 -p 1 -timeout 40m "$@"
else
	# The operator tests disrupt the whole installation, and uninstalling removes it.
	go list ./test/e2e/... | grep -vE '/(operator|uninstall|variants)$' | xargs go test -count=1 -p 1 -timeout 40m -skip '^TestFlood'
	go test -count=1 -timeout 40m ./test/e2e/operator
	CHAOS_DURATION=${CHAOS_DURATION:-1m} CHAOS_SEED=${CHAOS_SEED:-1} go test -v -count=1 -timeout 3h -run TestCluster ./test/chaos
	# They only show here that they work.
	go test -run '^$' -bench . -short -timeout 15m ./test/bench/cluster
	[[ -z ${MEASURE_AFTER:-} ]] || flock "$MEASURE_AFTER" true
	go test -count=1 -timeout 40m -run '^TestFlood' ./test/e2e/tenants
fi
[[ -z ${KEEP:-} ]] || exit 0
E2E_UNINSTALL=1 go test -count=1 -timeout 15m ./test/e2e/uninstall
