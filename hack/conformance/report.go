package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// report says of each clause which tests cite it, or why none does.
type report struct {
	list    clauseList
	reasons map[string]string
	cited   cited
	// faults are what has to be put right.
	faults []string
}

func newReport(list clauseList, reasons map[string]string, cited cited) *report {
	r := &report{list: list, reasons: reasons, cited: cited}
	for _, c := range list.clauses {
		_, explained := reasons[c.id]
		covered := len(cited[c.id]) > 0
		switch {
		case covered && explained:
			r.fault("clause %s is tested, take it out of uncovered.txt", c.id)
		case c.binds() && !covered && !explained:
			r.fault("clause %s (%s) is not tested: %s", c.id, c.level, c.summary)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(reasons)) {
		if !list.has(id) {
			r.fault("uncovered.txt explains %s, which is not in serving-clauses.txt", id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(cited)) {
		if !list.knows(id) {
			r.fault("there is no clause %s, which is cited by %s", id, strings.Join(cited[id], ", "))
		}
	}
	return r
}

func (r *report) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// print writes the clauses with their tests, then those that bind and are not tested, then the faults.
func (r *report) print(w io.Writer) error {
	out := bufio.NewWriter(w)
	var uncovered []clause
	binding, covered := 0, 0
	for _, c := range r.list.clauses {
		fmt.Fprintf(out, "%-9s %-11s %s\n", c.id, strings.ReplaceAll(c.level, "_", " "), c.summary)
		for _, test := range slices.Sorted(slices.Values(r.cited[c.id])) {
			fmt.Fprintf(out, "%22s%s\n", "", test)
		}
		if !c.binds() {
			continue
		}
		binding++
		if len(r.cited[c.id]) > 0 {
			covered++
		} else {
			uncovered = append(uncovered, c)
		}
	}
	fmt.Fprintf(out, "\n%d of %d clauses that bind are tested.\n", covered, binding)
	if len(uncovered) > 0 {
		fmt.Fprintln(out, "\nNot tested:")
	}
	for _, c := range uncovered {
		reason, ok := r.reasons[c.id]
		if !ok {
			reason = "NO REASON GIVEN"
		}
		fmt.Fprintf(out, "%-9s %-11s %s\n", c.id, strings.ReplaceAll(c.level, "_", " "), reason)
	}
	if len(r.faults) > 0 {
		fmt.Fprintln(out, "\nFaults:")
	}
	for _, fault := range r.faults {
		fmt.Fprintln(out, fault)
	}
	return out.Flush()
}
