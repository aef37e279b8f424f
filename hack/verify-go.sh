#!/usr/bin/env bash
# Fails if module files, format or tracked files are invalid. Changes nothing, and reports all errors, not only the
# first. What go vet knows is a part of make lint.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=0
fail() {
	echo "$*" >&2
	failed=1
}

for module in . hack/certmanager hack/cluster hack/otelcol hack/pebble hack/tools; do
	go -C "$module" mod tidy -diff || fail "$module/go.mod is not tidy: run go -C $module mod tidy"
done
# Modules that import this one would ignore the replacement.
if go mod edit -json | grep -q '"Replace": \['; then
	fail "go.mod may not have a replace"
fi

# A cluster may run in .cache, whose files come and go: find would fail if it read that directory.
unformatted=$(find . \( -path ./.cache -o -path ./.git \) -prune -o -name '*.go' -exec gofmt -s -l {} +) || fail "gofmt failed"
[[ -z $unformatted ]] || fail "run gofmt -s -w on:"$'\n'"$unformatted"

go run ./hack/trackedfiles || fail "git tracks files that may not be in the tree"

exit "$failed"
