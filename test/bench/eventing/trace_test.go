package eventing

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// BenchmarkTrace measures events per second with records of what happened to each event and a dead letter store, as by default, and without both
// (--trace-retention, --dead-letter-retention). No record may be dropped.
func BenchmarkTrace(b *testing.B) {
	figures.Once(b, func() {
		untraced, traced := start(b, "--trace-retention=0", "--dead-letter-retention=0"), start(b)
		toUntraced, toTraced := untraced.broker(b, 1, 1), traced.broker(b, 1, 1)
		var withouts, withs, withoutCosts, withCosts []float64
		// Two runs of the same server differ more than these servers do, so the rounds are many.
		figures.Alternate(3*rounds, flows(b, untraced, toUntraced, &withouts, &withoutCosts), flows(b, traced, toTraced, &withs, &withCosts))
		if recorded, dropped := traced.metric(b, "knative_eventing_trace_records_total"), traced.metric(b, "knative_eventing_trace_dropped_total"); recorded == 0 || dropped > 0 {
			b.Errorf("%.0f records were written, %.0f dropped", recorded, dropped)
		}
		b.ReportMetric(figures.Median(withouts), "untraced-events/s")
		b.ReportMetric(figures.Median(withs), "traced-events/s")
		b.ReportMetric(figures.Percent(withs, withouts), "traced-%-of-untraced")
		b.ReportMetric(figures.Median(withoutCosts), "untraced-server-cpu-µs/event")
		b.ReportMetric(figures.Median(withCosts), "traced-server-cpu-µs/event")
	})
}

// metric returns the sum of all values of a metric.
func (s *server) metric(b *testing.B, name string) (sum float64) {
	b.Helper()
	r := s.Do(b, harness.Request{Method: http.MethodGet, Path: "/metrics", Accept: "text/plain"})
	for line := range strings.Lines(string(r.Body)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[0] != name && !strings.HasPrefix(fields[0], name+"{") {
			continue
		}
		value, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		sum += value
	}
	return sum
}
