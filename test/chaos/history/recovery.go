package history

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// recoveredAt returns the time at which the first probe of an aspect succeeded that started after a time.
func (h *History) recoveredAt(aspect string, after Time) (at Time, ok bool) {
	for _, s := range h.Successes {
		if s.Aspect == aspect && s.Start >= after && (!ok || s.End < at) {
			at, ok = s.End, true
		}
	}
	return at, ok
}

// Recovery returns a table with the recovery times of each kind of fault: from the end of the fault until the first probe of an
// aspect succeeded, as median and maximum.
func (h *History) Recovery(aspects []string) string {
	times := map[string]map[string][]Time{}
	count := map[string]int{}
	for _, f := range h.Faults {
		count[f.Name]++
		if times[f.Name] == nil {
			times[f.Name] = map[string][]Time{}
		}
		for _, aspect := range aspects {
			if at, ok := h.recoveredAt(aspect, f.End); ok {
				times[f.Name][aspect] = append(times[f.Name][aspect], at-f.End)
			}
		}
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%-14s %5s", "fault", "times")
	for _, aspect := range aspects {
		fmt.Fprintf(&table, "  %20s", aspect)
	}
	for _, name := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(&table, "\n%-14s %5d", name, count[name])
		for _, aspect := range aspects {
			fmt.Fprintf(&table, "  %20s", summary(times[name][aspect], count[name]))
		}
	}
	return table.String()
}

// summary describes recovery times as "median, maximum". A fault without recovery is marked.
func summary(times []Time, faults int) string {
	if len(times) == 0 {
		return "never"
	}
	slices.Sort(times)
	text := fmt.Sprintf("%s, %s", rounded(times[len(times)/2]), rounded(times[len(times)-1]))
	if missing := faults - len(times); missing > 0 {
		text += fmt.Sprintf(", %d never", missing)
	}
	return text
}

func rounded(t Time) Time { return t.Round(10 * time.Millisecond) }
