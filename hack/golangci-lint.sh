#!/usr/bin/env bash
# Runs golangci-lint in the version that hack/tools/go.mod pins, built once into the user's cache.
#
# Usage: hack/golangci-lint.sh ARGUMENT...   the arguments of golangci-lint, for the current directory
set -euo pipefail
tools=$(cd "$(dirname "$0")/tools" && pwd)

version=$(go -C "$tools" list -m -f '{{.Version}}' github.com/golangci/golangci-lint/v2)
# A linter must be built with the same Go version as the code that it reads.
dir=${XDG_CACHE_HOME:-$HOME/.cache}/knative-apiserver/tools/$version-$(go env GOVERSION)
linter=$dir/golangci-lint
if [[ ! -x $linter ]]; then
	echo "building golangci-lint $version, once" >&2
	mkdir -p "$dir"
	# Rename it when it is complete, so that concurrent runs never execute a partial file.
	go -C "$tools" build -ldflags "-s -w -X main.version=$version" -o "$linter.$$" \
		github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	mv "$linter.$$" "$linter"
fi
exec "$linter" "$@"
