#!/usr/bin/env bash
# Runs the tests of each package several times under three conditions, and prints how many runs passed: on an idle machine
# (alone), while every processor is busy with other work (busy), and on one processor (single). A test that fails under
# one of them depends on speed.
#
#   hack/repeat.sh [packages...]      default: all packages with tests
#   COUNT=10                          runs for each condition
#   CONDITIONS='alone busy single'
#   OUT=.cache/repeat                 directory for the output of failed runs
set -uo pipefail
cd "$(dirname "$0")/.."
count=${COUNT:-10}
read -ra conditions <<<"${CONDITIONS:-alone busy single}"
root=$PWD
work=$(mktemp -d)
out=${OUT:-.cache/repeat}
mkdir -p "$out"
out=$(cd "$out" && pwd)

burners=()
# burn keeps every processor busy until cool is called.
burn() {
	local _
	for _ in $(seq "$(nproc)"); do
		(while :; do :; done) &
		burners+=($!)
	done
}
cool() {
	((${#burners[@]} == 0)) || kill "${burners[@]}" 2>/dev/null
	((${#burners[@]} == 0)) || wait "${burners[@]}" 2>/dev/null
	burners=()
}
trap 'cool; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

if (($# == 0)); then
	set -- ./cmd/... ./hack/... ./pkg/... ./test/integration/... ./test/manifests/... ./test/app/... ./test/harness/...
fi
make --no-print-directory build >&2 || exit 1
mapfile -t packages < <(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' "$@" | grep .)

printf '%-50s' package
printf '%12s' "${conditions[@]}"
printf '\n'
failed=0
for entry in "${packages[@]}"; do
	read -r package dir <<<"$entry"
	if ! go test -c -o "$work/package.test" "$package" >&2; then
		printf '%-50s does not compile\n' "${dir#"$root"/}"
		failed=1
		continue
	fi
	printf '%-50s' "${dir#"$root"/}"
	for condition in "${conditions[@]}"; do
		on=()
		case $condition in
		alone) ;;
		busy) burn ;;
		single) on=(taskset -c 0) ;;
		*)
			echo "CONDITIONS may name alone, busy and single, not $condition" >&2
			exit 2
			;;
		esac
		passed=0
		for ((i = 1; i <= count; i++)); do
			log=$out/$(tr / - <<<"${dir#"$root"/}")-$condition-$i.log
			# GOMAXPROCS follows the processors of taskset.
			if (cd "$dir" && "${on[@]}" "$work/package.test" -test.timeout 20m >"$log" 2>&1 </dev/null); then
				passed=$((passed + 1))
				rm "$log"
			else
				failed=1
			fi
		done
		cool
		printf '%12s' "$passed/$count"
	done
	printf '\n'
done
exit "$failed"
