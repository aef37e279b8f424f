package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// specification is a specification that tests cite.
type specification struct {
	name, title string
	list        clauseList
	// titles reports whether sections have titles, which may be cited without a clause.
	titles bool
}

func (s specification) grammar() grammar {
	if s.titles {
		return newGrammar(s.name, titled, s.list.sections())
	}
	return newGrammar(s.name, numbered, nil)
}

// report lists for each clause the tests that cite it, or the reason why none does.
type report struct {
	specifications []specification
	reasons        map[string]string
	deviations     []string
	cited          citations
	// faults are errors in the lists and citations.
	faults []string
}

func newReport(specifications []specification, reasons map[string]string, deviations []string, cited citations) *report {
	r := &report{specifications: specifications, reasons: reasons, deviations: deviations, cited: cited}
	for _, s := range specifications {
		for _, c := range s.list.clauses {
			_, explained := reasons[c.id]
			covered := len(cited.clauses[c.id]) > 0
			switch {
			case covered && explained:
				r.fault("clause %s is tested, remove it from uncovered.txt", c.id)
			case c.binds() && !covered && !explained:
				r.fault("clause %s (%s) is not tested: %s", c.id, c.level, c.summary)
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(reasons)) {
		if !r.has(id) {
			r.fault("uncovered.txt explains %s, which is in no list of clauses", id)
		}
	}
	for _, id := range deviations {
		if !r.has(id) {
			r.fault("docs/deviations.md declares %s, which is in no list of clauses", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(cited.clauses)) {
		if !r.has(id) {
			r.fault("there is no clause %s, which is cited by %s", id, strings.Join(cited.clauses[id], ", "))
		}
	}
	return r
}

func (r *report) has(id string) bool {
	return slices.ContainsFunc(r.specifications, func(s specification) bool { return s.list.has(id) })
}

func (r *report) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// tests returns the tests that cite a clause, in order.
func (r *report) tests(c clause) []string {
	return slices.Sorted(slices.Values(r.cited.clauses[c.id]))
}

// tested returns the number of requirements of a specification, and the number of tested ones.
func (r *report) tested(s specification) (tested, binding int) {
	for _, c := range s.list.clauses {
		if c.binds() {
			binding++
			if len(r.tests(c)) > 0 {
				tested++
			}
		}
	}
	return tested, binding
}

// print writes the clauses of each specification with all their tests.
func (r *report) print(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, s := range r.specifications {
		r.printSpecification(out, s)
	}
	return out.Flush()
}

// printSpecification writes the clauses with their tests, the required clauses without a test, and the tests that cite only a
// section.
func (r *report) printSpecification(out io.Writer, s specification) {
	width := 0
	for _, c := range s.list.clauses {
		width = max(width, len(c.id))
	}
	row := func(c clause, text string) {
		fmt.Fprintf(out, "%-*s %-11s %s\n", width, c.id, level(c), text)
	}
	tests := func(names []string) {
		for _, test := range names {
			fmt.Fprintf(out, "%*s%s\n", width+13, "", test)
		}
	}
	var uncovered []clause
	for _, c := range s.list.clauses {
		row(c, c.summary)
		tests(r.tests(c))
		if c.binds() && len(r.tests(c)) == 0 {
			uncovered = append(uncovered, c)
		}
	}
	tested, binding := r.tested(s)
	fmt.Fprintf(out, "\n%d of %d clauses of %s that bind are tested.\n\n", tested, binding, s.name)
	if len(uncovered) > 0 {
		fmt.Fprintln(out, "Not tested:")
		for _, c := range uncovered {
			reason, ok := r.reasons[c.id]
			if !ok {
				reason = "NO REASON GIVEN"
			}
			row(c, reason)
		}
		fmt.Fprintln(out)
	}
	if !s.titles {
		return
	}
	fmt.Fprintln(out, "Tests that name a section:")
	for _, section := range s.list.sections() {
		if named := r.cited.sections[s.name+" "+section]; len(named) > 0 {
			fmt.Fprintln(out, section)
			tests(slices.Sorted(slices.Values(named)))
		}
	}
	fmt.Fprintln(out)
}

func level(c clause) string { return strings.ReplaceAll(c.level, "_", " ") }
