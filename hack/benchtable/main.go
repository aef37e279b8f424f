// Command benchtable reads the output of `go test -bench`, prints it, and then a table of the figures that docs/performance.md explains: each
// beside its references of the same run, and its target. Figures whose benchmark did not run are listed too.
//
// Usage: go test -bench . ./test/bench/... | go run ./hack/benchtable [-gate]
//
// With -gate it fails if a figure was not measured, or misses its gate: half of its target, or further away where a run varies more.
package main

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

func main() {
	gate := flag.Bool("gate", false, "Fail if a figure misses its gate.")
	flag.Parse()
	results, err := read(os.Stdin, os.Stdout)
	if err == nil {
		err = report(os.Stdout, table(), results, *gate)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// results are the metrics by package, without its first elements, benchmark and unit: "serving Throughput req/s".
type results map[string]float64

// read reads the output of benchmarks, and copies it. It fails if a benchmark has failed.
func read(from io.Reader, to io.Writer) (results, error) {
	all := results{}
	pkg, failed := "", false
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		fmt.Fprintln(to, line)
		failed = failed || strings.HasPrefix(line, "FAIL")
		if name, ok := strings.CutPrefix(line, "pkg: "); ok {
			pkg = name[strings.LastIndexByte(name, '/')+1:]
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		benchmark, _, _ := strings.Cut(strings.TrimPrefix(fields[0], "Benchmark"), "-")
		// After the number of iterations, each value is followed by its unit.
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("benchmark %s: %w", benchmark, err)
			}
			all[pkg+" "+benchmark+" "+fields[i+1]] = value
		}
	}
	if failed {
		return nil, fmt.Errorf("benchmarks failed")
	}
	return all, lines.Err()
}

// row is a figure.
type row struct {
	// work is the measured work, in unit.
	work, unit string
	// leftOut is the reason why it may be left out. Without a reason, -gate requires it.
	leftOut string
	// metric is the key of the figure in results. references are the keys of others, by their names.
	metric     string
	references []reference
	// less is true if less is better. The target is a value, or a multiple of the metric relative, if that was measured. The gate is the
	// target divided, or multiplied, by slack.
	less     bool
	target   float64
	relative string
	slack    float64
}

// reference is another subject of the same benchmark.
type reference struct{ name, metric string }

// bound returns the target or, with slack, the gate.
func (r *row) bound(all results, slack float64) (value float64, known bool) {
	value = r.target
	if r.relative != "" {
		base, measured := all[r.relative]
		if !measured {
			return 0, false
		}
		value *= base
	}
	if r.less {
		return value * slack, true
	}
	return value / slack, true
}

// meets reports whether a value is at least, or at most, a bound.
func (r *row) meets(value, bound float64) bool { return r.less == (value < bound) || value == bound }

// defaultSlack is the factor between target and gate.
const defaultSlack = 2

// report prints the table. With gate, it returns an error that names each figure that misses its gate.
func report(to io.Writer, rows []row, all results, gate bool) error {
	fmt.Fprint(to, "\n| work | measured | references | target | gate | |\n| --- | --- | --- | --- | --- | --- |\n")
	var missed []string
	for i := range rows {
		r := &rows[i]
		value, measured := all[r.metric]
		target, known := r.bound(all, 1)
		limit, _ := r.bound(all, cmp.Or(r.slack, defaultSlack))
		state := ""
		switch {
		case !measured && r.leftOut != "":
			state = "left out: " + r.leftOut
		case !measured:
			state = "left out: not run"
			missed = append(missed, r.work+" was not measured")
		case !known:
			state = "no target: its reference is not installed"
		case !r.meets(value, limit):
			state = "**misses its gate**"
			missed = append(missed, fmt.Sprintf("%s: %s %s, want %s %s", r.work, number(value), r.unit, r.side(), number(limit)))
		case !r.meets(value, target):
			state = "misses its target"
		default:
			state = "met"
		}
		cells := []string{r.work, "", r.listed(all), "", "", state}
		if measured {
			cells[1] = number(value) + " " + r.unit
		}
		if known {
			cells[3], cells[4] = r.side()+" "+number(target), number(limit)
		}
		fmt.Fprintln(to, "| "+strings.Join(cells, " | ")+" |")
	}
	if gate && len(missed) > 0 {
		return fmt.Errorf("performance: %s", strings.Join(missed, "; "))
	}
	return nil
}

// side returns the side of a bound on which values are good.
func (r *row) side() string {
	if r.less {
		return "at most"
	}
	return "at least"
}

// listed returns the measured references.
func (r *row) listed(all results) string {
	var listed []string
	for _, other := range r.references {
		if value, measured := all[other.metric]; measured {
			listed = append(listed, other.name+" "+number(value))
		}
	}
	return strings.Join(listed, ", ")
}

// number returns a value with three digits.
func number(value float64) string {
	if value >= 100 {
		return strconv.FormatFloat(value, 'f', 0, 64)
	}
	return strconv.FormatFloat(value, 'g', 3, 64)
}
