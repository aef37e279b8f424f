#!/usr/bin/env bash
# Repeats the attacks and faults of findings.txt, and prints for each the limit or fix that its test showed.
#
#   test/security/run.sh [finding...]      all findings, or those with these numbers
#
# Findings whose tests need pods run only on a cluster: KEEP=1 hack/e2e.sh leaves one running, whose cluster.json E2E_CLUSTER names.
set -uo pipefail
cd "$(dirname "$0")/../.."

# selected reports whether a finding is among the arguments.
selected() {
	local finding=$1 wanted
	shift
	(($# > 0)) || return 0
	for wanted in "$@"; do
		[[ $wanted == "$finding" ]] && return 0
	done
	return 1
}

make --no-print-directory build >&2 || exit 1
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failed=0 ran=0
while IFS=$'\t' read -r finding package name limit; do
	[[ -n $finding && $finding != '#'* ]] || continue
	selected "$finding" "$@" || continue
	ran=$((ran + 1))
	if [[ $package == ./test/e2e/* && -z ${E2E_CLUSTER:-} ]]; then
		result='needs a cluster: set E2E_CLUSTER'
	elif ! go test -count=1 -v -timeout 15m -run "^$name\$" "$package" >"$output" 2>&1 </dev/null; then
		result=FAILED failed=1
		cat "$output" >&2
	elif ! grep -q -- "^--- PASS: $name" "$output"; then
		# go test passes when no test matches.
		result='FAILED: no such test ran' failed=1
	else
		result=ok
	fi
	printf '%-3s %-45s %-50s %s: %s\n' "$finding" "$package" "$name" "$result" "$limit"
done <test/security/findings.txt
if ((ran == 0)); then
	echo "no finding in test/security/findings.txt has a number among: $*" >&2
	exit 2
fi
exit "$failed"
