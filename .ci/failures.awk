# What failed, from the output of go test: the start of each message, the stacks of tests that ran when their package timed out, and at the end the
# names. Logs of CI keep only their end, and a package that times out prints the stacks of all goroutines.

# show prints a text at most once, and name at the end.
function show(text) { if (!(text in shown)) { shown[text]; print text } }
function name(text) { if (!(text in named)) { named[text]; names = names text "\n" } }

# A goroutine of a test, except those that wait for other tests.
function goroutine_ends() {
	if (stack ~ /testing\.tRunner\(/ && stack !~ /testing\.\(\*T\)\.(Parallel|Run)\(/) show(stack)
	stack = ""
}
/^goroutine [0-9]+ [[]/ { goroutine_ends(); stack = $0; next }
stack != "" && (/^[a-z].*[)]$/ || /^\t/ || /^created by /) { stack = stack "\n" $0; next }
stack != "" { goroutine_ends() }

# go test -v prints the messages of a test before its result.
/^ +[a-z0-9_]+\.go:[0-9]+: / && lines <= 0 { before[++messages] = $0; next }
/^(=== RUN   [^\/]+$|--- PASS|ok )/ { messages = 0 }

/^ *--- FAIL: / {
	for (i = messages > 30 ? messages - 29 : 1; i <= messages; i++) show(substr(before[i], 1, 300))
	messages = 0
	name($0)
	lines = 6
	next
}
/^panic: / || /^fatal error: / { running = 8 }
/^(=== |--- PASS|PASS|ok |$)/ { lines = running = 0 }
running > 0 { running--; name(substr($0, 1, 300)) }
lines > 0 { lines--; show(substr($0, 1, 300)) }
/^FAIL\t/ || /^make: [*]+ / { name($0) }
/^performance: / { name($0) }
END { goroutine_ends(); printf "==> failed:\n%s", names }
