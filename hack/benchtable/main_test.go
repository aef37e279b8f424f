package main

import (
	"io"
	"strings"
	"testing"
)

const output = `goos: linux
pkg: example.org/test/bench/serving
BenchmarkThroughput-2   	       1	     20000 direct-req/s	        45.0 gateway-%-of-direct	        60.0 nginx-%-of-direct
BenchmarkLatency-2   	       1	        51.0 gateway-added-p50-µs
PASS
ok  	example.org/test/bench/serving	10.0s
`

func TestTable(t *testing.T) {
	const throughput = "serving Throughput gateway-%-of-direct"
	nginx := func(target float64) row {
		return row{work: "requests", unit: "%", metric: throughput, target: target, relative: "serving Throughput nginx-%-of-direct"}
	}
	for name, test := range map[string]struct {
		row    row
		line   string
		failed string
	}{
		"met":             {nginx(0.7), "| requests | 45 % |  | at least 42 | 21 | met |", ""},
		"at the target":   {nginx(0.75), "| requests | 45 % |  | at least 45 | 22.5 | met |", ""},
		"missed":          {nginx(1), "| requests | 45 % |  | at least 60 | 30 | misses its target |", ""},
		"gate":            {nginx(2), "| requests | 45 % |  | at least 120 | 60 | **misses its gate** |", "requests: 45 %, want at least 60"},
		"less":            {row{work: "latency", unit: "µs", metric: "serving Latency gateway-added-p50-µs", less: true, target: 60}, "| latency | 51 µs |  | at most 60 | 120 | met |", ""},
		"more":            {row{work: "latency", unit: "µs", metric: "serving Latency gateway-added-p50-µs", less: true, target: 20}, "| latency | 51 µs |  | at most 20 | 40 | **misses its gate** |", "latency: 51 µs, want at most 40"},
		"slack":           {row{work: "latency", unit: "µs", metric: "serving Latency gateway-added-p50-µs", less: true, target: 20, slack: 3}, "| latency | 51 µs |  | at most 20 | 60 | misses its target |", ""},
		"reference":       {row{work: "requests", unit: "%", metric: throughput, references: []reference{{"direct", "serving Throughput direct-req/s"}, {"haproxy", "none"}}, target: 40}, "| requests | 45 % | direct 20000 | at least 40 | 20 | met |", ""},
		"not installed":   {row{work: "requests", unit: "%", metric: throughput, target: 1, relative: "none"}, "| requests | 45 % |  |  |  | no target: its reference is not installed |", ""},
		"not run":         {row{work: "events", unit: "%", metric: "none", target: 1}, "| events |  |  | at least 1 | 0.5 | left out: not run |", "events was not measured"},
		"needs a cluster": {row{work: "pods", leftOut: needsCluster, metric: "none", target: 1}, "| pods |  |  | at least 1 | 0.5 | left out: " + needsCluster + " |", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var copied, printed strings.Builder
			all, err := read(strings.NewReader(output), &copied)
			if err != nil || copied.String() != output {
				t.Fatalf("%v, copied:\n%s", err, &copied)
			}
			err = report(&printed, []row{test.row}, all, true)
			if lines := strings.Split(strings.TrimSpace(printed.String()), "\n"); lines[len(lines)-1] != test.line {
				t.Errorf("got %s\nwant %s", lines[len(lines)-1], test.line)
			}
			if (err != nil) != (test.failed != "") || err != nil && !strings.Contains(err.Error(), test.failed) {
				t.Errorf("error %v, want %q", err, test.failed)
			}
			if err := report(io.Discard, []row{test.row}, all, false); err != nil {
				t.Errorf("without -gate: %v", err)
			}
		})
	}
}

// Failed benchmarks fail, and malformed lines.
func TestRead(t *testing.T) {
	for _, bad := range []string{"FAIL\n", "--- FAIL\nFAIL\texample.org\t1s\n", "BenchmarkA-2 1 x y\n"} {
		if _, err := read(strings.NewReader(bad), io.Discard); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// Each figure has a distinct name, and a target.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range table() {
		if seen[r.work] || r.work == "" || r.unit == "" || r.metric == "" || r.target == 0 {
			t.Errorf("row %+v", r)
		}
		seen[r.work] = true
	}
}
