#!/usr/bin/env bash
# Runs the benchmarks of the default installation on a cluster that it starts and stops. The other benchmarks run before it, because an idle
# cluster uses a fifth of two processors. Without root it says so and runs nothing, and nothing if E2E_CLUSTER names a running cluster, whose
# benchmarks run with the others.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -z ${E2E_CLUSTER:-} ]] || exit 0
if ((EUID != 0)) || [[ $(uname) != Linux ]]; then
	echo "The benchmarks of the default installation are left out: a cluster needs root on Linux"
	exit 0
fi
export CLUSTER_DIR=${CLUSTER_DIR:-$PWD/.cache/cluster}
if [[ -e $CLUSTER_DIR/cluster.json ]]; then
	echo "The benchmarks of the default installation are left out: a cluster exists in $CLUSTER_DIR. Stop it, or set E2E_CLUSTER to its cluster.json"
	exit 0
fi
trap 'go -C hack/cluster run . down --dir "$CLUSTER_DIR"' EXIT
# The first two need an installation that has served nothing.
KEEP=1 hack/e2e.sh -run '^$' -bench '^Benchmark(Idle|Memory)$' ./test/bench/cluster
export E2E_CLUSTER=$CLUSTER_DIR/cluster.json
go test -run '^$' -bench '^BenchmarkManyServices$' -timeout 20m ./test/bench/cluster
go test -run '^$' -bench '^BenchmarkInstalled$' -p 1 -timeout 20m ./test/bench/serving ./test/bench/eventing
