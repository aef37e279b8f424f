#!/usr/bin/env bash
# Fails if the generated code differs from the output of hack/update-codegen.sh. It works on a copy and never
# changes the tree. Programs may be built and a cluster may run in bin and .cache meanwhile: only what the generators read is
# copied, as tar fails if a directory changes.
set -euo pipefail
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/tree" "$tmp/before" "$tmp/after"
tar -c go.mod go.sum hack pkg | tar -x -C "$tmp/tree"

# generated DIR copies the generated code of the copy to DIR.
generated() {
	(cd "$tmp/tree" && find pkg \( -path 'pkg/generated/*' -o -name 'zz_generated.*' \) -type f -print0 | tar -c --null -T -) |
		tar -x -C "$1"
}

generated "$tmp/before"
hack/update-codegen.sh "$tmp/tree"
generated "$tmp/after"
if ! (cd "$tmp" && diff -Nru before after); then
	echo "generated code is out of date (- current, + generated): run make generate" >&2
	exit 1
fi
echo "generated code is up to date"
