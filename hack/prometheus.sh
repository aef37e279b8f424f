#!/usr/bin/env bash
# Prints the directory of the programs prometheus and promtool, which the tests of artifacts/monitoring run. If they are not installed, it
# extracts Debian's package into the user's cache: installing the package would start a service.
set -euo pipefail

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
	dirname "$(command -v promtool)"
	exit
fi
command -v apt-get >/dev/null || { echo "prometheus and promtool are not installed, and there is no apt-get to download them" >&2; exit 1; }

candidate() { apt-cache policy prometheus | sed -n 's/^  Candidate: //p' | grep -v '(none)'; }
version=$(candidate || true)
if [[ -z $version ]]; then
	sudo=()
	((EUID == 0)) || sudo=(sudo)
	"${sudo[@]}" apt-get update >&2
	version=$(candidate)
fi
dir=${XDG_CACHE_HOME:-$HOME/.cache}/knative-apiserver/prometheus-$version
if [[ ! -e $dir ]]; then
	mkdir -p "${dir%/*}"
	tmp=$(mktemp -d "${dir%/*}/.prometheus.XXXXXX")
	trap 'rm -rf "$tmp"' EXIT
	# Root downloads as itself, not as the user _apt, who cannot write there.
	(cd "$tmp" && apt-get -o APT::Sandbox::User=root download "prometheus=$version" >&2 && dpkg-deb --extract prometheus_*.deb root)
	# Another process may have done the same.
	mv --no-target-directory "$tmp/root" "$dir" 2>/dev/null || [[ -e $dir/usr/bin/promtool ]]
fi
echo "$dir/usr/bin"
