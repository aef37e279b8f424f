#!/usr/bin/env bash
# Runs every fuzz target of pkg for a limited time, one after the other, and continues after a failure.
#
# Usage: hack/fuzz.sh TIME   TIME is for each target, such as 30s.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
while IFS=: read -r file name; do
	package=./$(dirname "$file")
	echo "$package $name"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "${1:-30s}" "$package" || failed+=("$package $name")
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' pkg | sed 's/:func /:/' | sort)

if ((${#failed[@]} > 0)); then
	printf 'failed: %s\n' "${failed[@]}" >&2
	exit 1
fi
