package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// testsPerRow bounds the tests that a row of the page names. make conformance prints all of them.
const testsPerRow = 2

const pageHead = `# Conformance

After reading this page you know which test proves each clause of the specifications, and where this server differs.

` + "`make conformance`" + ` generates this page, and fails if a clause that binds (MUST, REQUIRED, SHALL) has neither a test nor a reason why there can
be none. It also prints all tests of a clause; a row of this page has the first two. Summaries are in our words. Tests cite clauses in
their comments ([contributing](contributing.md)).
`

// page returns docs/conformance.md.
func (r *report) page() []byte {
	var out bytes.Buffer
	out.WriteString(pageHead)
	for _, s := range r.specifications {
		tested, binding := r.tested(s)
		fmt.Fprintf(&out, "\n## %s\n\n", s.title)
		fmt.Fprintf(&out, "%d clauses. %d of the %d that bind are tested. Tests cite them as `%s %s`.\n\n",
			len(s.list.clauses), tested, binding, s.name, strings.TrimPrefix(s.list.clauses[0].id, s.name+" "))
		out.WriteString("| clause | level | about | test | deviation |\n| --- | --- | --- | --- | --- |\n")
		for _, c := range s.list.clauses {
			fmt.Fprintf(&out, "| %s | %s | %s | %s | %s |\n",
				strings.TrimPrefix(c.id, s.name+" "), level(c), escape(c.summary), r.testCell(c), r.deviationCell(c))
		}
	}
	return out.Bytes()
}

// testCell names the first tests of a clause, or the reason why no test cites it.
func (r *report) testCell(c clause) string {
	tests := r.tests(c)
	if len(tests) == 0 {
		if reason, ok := r.reasons[c.id]; ok {
			return "none: " + escape(reason)
		}
		return "none"
	}
	var names []string
	for _, test := range tests[:min(len(tests), testsPerRow)] {
		names = append(names, "`"+test+"`")
	}
	return strings.Join(names, ", ")
}

func (r *report) deviationCell(c clause) string {
	if slices.Contains(r.deviations, c.id) {
		return "[declared](deviations.md)"
	}
	return ""
}

// escape keeps a text within its cell of a table.
func escape(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
