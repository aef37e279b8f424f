package serving

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/otlptest"
)

// tracingRounds is the number of alternating rounds: many short ones compare better than few long ones while the speed of the machine changes.
const tracingRounds = 20

// BenchmarkTracing measures requests per second over 64 keep-alive connections while 1 % of them are traced, and without export of traces, by one
// server whose settings change between the rounds. The collector is on the same cores.
func BenchmarkTracing(b *testing.B) {
	figures.Once(b, func() {
		collector, host := otlptest.Start(b), deploy(b, service(b, "traced", 1))
		var traced, plain, tracedCosts, plainCosts []float64
		measure := func(rates, costs *[]float64) {
			before := server.CPUTime(b)
			l := runWrk(b, gateway(b), host, 64, wrkTime)
			*rates, *costs = append(*rates, l.rate), append(*costs, each(server.CPUTime(b)-before, l.rate, wrkTime))
		}
		figures.Alternate(tracingRounds, func() {
			export(b, host, "00", "tracing-protocol: grpc", "tracing-endpoint: "+collector.GRPC, `tracing-sampling-rate: "0.01"`)
			measure(&traced, &tracedCosts)
		}, func() {
			export(b, host, "01", "tracing-protocol: none")
			measure(&plain, &plainCosts)
		})
		b.ReportMetric(figures.Median(traced), "traced-req/s")
		b.ReportMetric(figures.Median(plain), "plain-req/s")
		b.ReportMetric(figures.Percent(traced, plain), "traced-%-of-plain")
		b.ReportMetric(figures.Median(tracedCosts), "traced-server-cpu-µs/req")
		b.ReportMetric(figures.Median(plainCosts), "plain-server-cpu-µs/req")
		b.ReportMetric(float64(len(collector.Spans(""))), "spans")
	})
}

// export changes config-observability and waits until it applies: while traces are exported, the backend gets the flags 00 of a new trace that is not
// sampled, and 01 otherwise.
func export(b *testing.B, host, flags string, lines ...string) {
	b.Helper()
	content := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-observability\ndata:\n  " + strings.Join(lines, "\n  ") + "\n"
	fresh := filepath.Join(configDir, ".observability")
	if err := os.WriteFile(fresh, []byte(content), 0o600); err != nil {
		b.Fatal(err)
	}
	if err := os.Rename(fresh, filepath.Join(configDir, "observability.yaml")); err != nil {
		b.Fatal(err)
	}
	harness.Eventually(b, "settings apply", func() error {
		request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, gateway(b)+"/headers", nil)
		if err != nil {
			return err
		}
		request.Host = host
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		_, parent, found := strings.Cut(strings.ToLower(string(body)), "traceparent")
		if end := strings.Index(parent, "-"+flags+`"`); !found || end < 0 || end > 80 {
			return fmt.Errorf("the backend gets %.100s", parent)
		}
		return nil
	})
}
