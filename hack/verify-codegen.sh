#!/usr/bin/env bash
# Fails when generated code is not what hack/update-codegen.sh makes of pkg/apis. Works on a copy: the tree
# itself is never written.
set -euo pipefail
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/tree" "$tmp/before" "$tmp/after"
tar -c --exclude=./.git --exclude=./.cache --exclude=./bin --exclude=./knative-apiserver-data . | tar -x -C "$tmp/tree"

# generated DIR copies what is generated in the copy of the tree to DIR.
generated() {
	(cd "$tmp/tree" && find pkg \( -path 'pkg/generated/*' -o -name 'zz_generated.*' \) -type f -print0 | tar -c --null -T -) |
		tar -x -C "$1"
}

generated "$tmp/before"
hack/update-codegen.sh "$tmp/tree"
generated "$tmp/after"
if ! (cd "$tmp" && diff -Nru before after); then
	echo "generated code is out of date (- is there, + would be): run make generate" >&2
	exit 1
fi
echo "generated code is up to date"
