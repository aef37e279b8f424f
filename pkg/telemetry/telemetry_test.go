package telemetry

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/test/otlptest"
)

// patience limits the wait for what happens in the background.
const patience = time.Minute

// fixture is a Telemetry with the registry that it exports.
type fixture struct {
	*Telemetry
	registry metrics.KubeRegistry
}

func newFixture(t *testing.T, file settings.Tracing) *fixture {
	t.Helper()
	registry := metrics.NewKubeRegistry()
	f := &fixture{New(t.Context(), Options{
		Default: file, Gatherer: registry, Register: registry.MustRegister, Namespace: "system", Version: "v1", Logger: logr.Discard(),
	}), registry}
	t.Cleanup(f.Stop)
	return f
}

// tracing returns settings that export traces.
func tracing(protocol settings.ExportProtocol, endpoint string, rate float64) settings.Observability {
	o := settings.Default("example.com").Observability
	o.Tracing = settings.Tracing{Protocol: protocol, Endpoint: endpoint, SamplingRate: rate}
	return o
}

// count returns the value of the metric about exports with some labels.
func (f *fixture) count(t *testing.T, name string, labels map[string]string) (sum float64) {
	t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			matches := true
			for _, label := range m.GetLabel() {
				want, asked := labels[label.GetName()]
				matches = matches && (!asked || want == label.GetValue())
			}
			if matches {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// unstalled calls try, at most three times, until it takes less than flushTimeout: Apply and Stop cancel the last export of a process that
// stalls for that long.
func unstalled(t *testing.T, try func()) {
	t.Helper()
	for range 3 {
		began := time.Now()
		try()
		took := time.Since(began)
		if took < flushTimeout {
			return
		}
		t.Logf("the exports took %s", took)
	}
}

// span makes a span and returns its trace ID.
func (f *fixture) span(name string) string {
	_, span := f.Tracing().Provider().Tracer("test").Start(context.Background(), name)
	span.End()
	return span.SpanContext().TraceID().String()
}

// TestTraces checks both protocols, the path of OTLP/HTTP, and the resource.
func TestTraces(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
	for name, test := range map[string]struct {
		of   func(*otlptest.Receiver) settings.Observability
		file func(*otlptest.Receiver) settings.Tracing
		kind string
	}{
		"grpc": {of: func(r *otlptest.Receiver) settings.Observability { return tracing(settings.ExportGRPC, r.GRPC, 1) }, kind: "grpc traces"},
		"http": {of: func(r *otlptest.Receiver) settings.Observability { return tracing(settings.ExportHTTP, r.HTTP, 1) }, kind: "http traces"},
		"http with path": {
			of: func(r *otlptest.Receiver) settings.Observability {
				return tracing(settings.ExportHTTP, r.HTTP+"/v1/traces", 1)
			}, kind: "http traces",
		},
		"--tracing-config-file": {
			file: func(r *otlptest.Receiver) settings.Tracing {
				return settings.Tracing{Protocol: settings.ExportGRPC, Endpoint: r.GRPC[len("http://"):], SamplingRate: 1}
			},
			of: func(*otlptest.Receiver) settings.Observability { return settings.Default("example.com").Observability }, kind: "grpc traces",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := otlptest.Start(t)
			var file settings.Tracing
			if test.file != nil {
				file = test.file(r)
			}
			var f *fixture
			var id string
			unstalled(t, func() {
				f = newFixture(t, file)
				f.Apply(test.of(r))
				id = f.span("one")
				// Stop exports the rest.
				f.Stop()
			})
			got, found := r.Span(id, "one")
			if !found || r.Requests(test.kind) == 0 {
				t.Fatalf("received %v, want a span by %s", r.Spans(""), test.kind)
			}
			for key, want := range map[string]string{
				"service.name": "knative-apiserver", "service.version": "v1", "k8s.namespace.name": "system", "deployment.environment.name": "test",
			} {
				if got.Resource[key] != want {
					t.Errorf("%s is %q, want %q", key, got.Resource[key], want)
				}
			}
			if n := f.count(t, "knative_telemetry_spans_total", map[string]string{"outcome": "exported"}); n != 1 {
				t.Errorf("%v spans are counted as exported, want 1", n)
			}
		})
	}
}

// TestSampling checks that a span is sampled like its parent, and a new trace at the rate.
func TestSampling(t *testing.T) {
	f := newFixture(t, settings.Tracing{})
	start := func(parent trace.TraceFlags) bool {
		ctx := t.Context()
		if parent != 0xff {
			ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: parent, Remote: true,
			}))
		}
		_, span := f.Tracing().Provider().Tracer("test").Start(ctx, "s")
		return span.SpanContext().IsSampled()
	}
	if f.Tracing().Enabled() || start(trace.FlagsSampled) {
		t.Error("a span is sampled although nothing is exported")
	}
	for rate, none := range map[float64]int{0: 1000, 1: 0} {
		f.Apply(tracing(settings.ExportGRPC, "http://127.0.0.1:1", rate))
		if !f.Tracing().Enabled() || !start(trace.FlagsSampled) || start(0) {
			t.Errorf("with the rate %v, a span is not sampled like its parent", rate)
		}
		not := 0
		for range 1000 {
			if !f.Tracing().Sample() {
				not++
			}
		}
		if not != none || start(0xff) != (rate == 1) {
			t.Errorf("with the rate %v, %d of 1000 traces are not sampled", rate, not)
		}
	}
	f.Apply(tracing(settings.ExportGRPC, "http://127.0.0.1:1", 0.01))
	if allocated := testing.AllocsPerRun(1000, func() { _ = f.Tracing().Enabled() && f.Tracing().Sample() }); allocated != 0 {
		t.Errorf("a decision allocates %v times", allocated)
	}
}

// TestApplyLive checks that another endpoint gets the next spans, the previous one those before, and none get them without protocol.
func TestApplyLive(t *testing.T) {
	var first, second *otlptest.Receiver
	var a, b, c string
	unstalled(t, func() {
		first, second = otlptest.Start(t), otlptest.Start(t)
		f := newFixture(t, settings.Tracing{})
		f.Apply(tracing(settings.ExportGRPC, first.GRPC, 1))
		a = f.span("a")
		f.Apply(tracing(settings.ExportHTTP, second.HTTP, 1))
		b = f.span("b")
		f.Apply(settings.Default("example.com").Observability)
		c = f.span("c")
		f.Stop()
	})
	got := map[string]int{"first": len(first.Spans("")), "second": len(second.Spans("")), "c": len(first.Spans(c)) + len(second.Spans(c))}
	if diff := cmp.Diff(map[string]int{"first": 1, "second": 1, "c": 0}, got); diff != "" || len(first.Spans(a)) != 1 || len(second.Spans(b)) != 1 {
		t.Errorf("received spans (-want +got):\n%s", diff)
	}
}

// silent is an endpoint that accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
		}
	}()
	return "http://" + listener.Addr().String()
}

// TestUnreachable checks that spans for an endpoint that does not answer are dropped beyond a bound and counted, without blocking, and that Stop returns.
func TestUnreachable(t *testing.T) {
	for name, protocol := range map[string]settings.ExportProtocol{"grpc": settings.ExportGRPC, "http": settings.ExportHTTP} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, settings.Tracing{})
			f.Apply(tracing(protocol, silent(t), 1))
			to := f.Tracing().to.Load()
			const made = 3 * maxSpans
			for range made {
				f.span("s")
			}
			if held := to.held.Load(); held > maxSpans {
				t.Errorf("%d spans are held, want at most %d", held, maxSpans)
			}
			if n := f.count(t, "knative_telemetry_spans_total", map[string]string{"outcome": "dropped"}); n == 0 {
				t.Error("no span is counted as dropped")
			}
			f.Stop()
			eventually(t, "count the spans that were not exported", func() bool {
				return f.count(t, "knative_telemetry_spans_total", nil) == made
			})
			if n := f.count(t, "knative_telemetry_spans_total", map[string]string{"outcome": "exported"}); n != 0 {
				t.Errorf("%v spans are counted as exported", n)
			}
		})
	}
}

// TestRecovery checks that an endpoint gets spans once it answers.
func TestRecovery(t *testing.T) {
	// Spans are exported at once.
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	r := otlptest.Start(t)
	target, err := url.Parse(r.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	var fails atomic.Bool
	answers := httputil.NewSingleHostReverseProxy(target)
	proxy := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if fails.Load() {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		answers.ServeHTTP(w, request)
	})}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go proxy.Serve(listener) //nolint:errcheck // it ends with Close
	defer proxy.Close()
	f := newFixture(t, settings.Tracing{})
	fails.Store(true)
	f.Apply(tracing(settings.ExportHTTP, "http://"+listener.Addr().String(), 1))
	f.span("lost")
	eventually(t, "count the lost span", func() bool {
		return f.count(t, "knative_telemetry_spans_total", map[string]string{"outcome": "failed"}) == 1
	})
	fails.Store(false)
	f.span("found")
	eventually(t, "export the next span", func() bool {
		return f.count(t, "knative_telemetry_spans_total", map[string]string{"outcome": "exported"}) == 1
	})
	if got := r.Spans(""); len(got) != 1 || got[0].Name != "found" {
		t.Errorf("received %v, want the span found", got)
	}
}

// TestMetrics checks both exports of metrics: which metrics belong to each, the original names of Knative's, and the size of requests.
func TestMetrics(t *testing.T) {
	server, requests := otlptest.Start(t), otlptest.Start(t)
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kn_revision_rps_stable_per_second"}, []string{"k8s_namespace_name", "kn_revision_name", "empty"})
	gauge.WithLabelValues("default", "r", "").Set(2)
	histogram := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "kn_serving_invocation_duration_seconds", Buckets: []float64{.5, 1}}, []string{"http_response_status_code"})
	histogram.WithLabelValues("200").Observe(.7)
	many := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "many_total"}, []string{"i"})
	for i := range 2*maxPoints + 7 {
		many.WithLabelValues(fmt.Sprint(i)).Inc()
	}
	o := settings.Default("example.com").Observability
	o.Metrics = settings.MetricsExport{Protocol: settings.ExportGRPC, Endpoint: server.GRPC, Interval: time.Second}
	o.RequestMetrics = settings.MetricsExport{Protocol: settings.ExportHTTP, Endpoint: requests.HTTP, Interval: time.Hour}
	var f *fixture
	unstalled(t, func() {
		f = newFixture(t, settings.Tracing{})
		f.registry.RawMustRegister(gauge, histogram, many)
		f.Apply(o)
		eventually(t, "export by the interval", func() bool { return server.Requests("grpc metrics") >= 3 })
		f.Stop()
	})

	got, _ := server.Metric("kn.revision.rps.stable")
	want := otlptest.Metric{Name: "kn.revision.rps.stable", Unit: "{request}/s", Resource: got.Resource, Points: []otlptest.Point{
		{Attributes: map[string]string{"k8s.namespace.name": "default", "kn.revision.name": "r"}, Value: 2},
	}}
	if diff := cmp.Diff(want, got); diff != "" || got.Resource["service.name"] != "knative-apiserver" {
		t.Errorf("gauge (-want +got):\n%s", diff)
	}
	got, _ = requests.Metric("kn.serving.invocation.duration")
	want = otlptest.Metric{Name: "kn.serving.invocation.duration", Unit: "s", Resource: got.Resource, Points: []otlptest.Point{
		{Attributes: map[string]string{"http.response.status_code": "200"}, Value: 1, Bounds: []float64{.5, 1}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("histogram (-want +got):\n%s", diff)
	}
	if _, both := server.Metric("kn.serving.invocation.duration"); both {
		t.Error("metrics of requests are exported by the settings of the others")
	}
	if _, both := requests.Metric("kn.revision.rps.stable"); both {
		t.Error("metrics of the server are exported by the settings of requests")
	}
	if n := server.Largest(); n > maxPoints {
		t.Errorf("a request has %d points, want at most %d", n, maxPoints)
	}
	if n := f.count(t, "knative_telemetry_metric_exports_total", map[string]string{"settings": "request-metrics", "outcome": "exported"}); n != 1 {
		t.Errorf("%v exports of metrics of requests are counted, want 1", n)
	}
}

// TestMetricsUnreachable checks that exports of metrics to an endpoint that does not answer are counted, and do not keep Stop.
func TestMetricsUnreachable(t *testing.T) {
	f := newFixture(t, settings.Tracing{})
	o := settings.Default("example.com").Observability
	o.Metrics = settings.MetricsExport{Protocol: settings.ExportGRPC, Endpoint: "http://127.0.0.1:1", Interval: time.Hour}
	f.Apply(o)
	f.Stop()
	if n := f.count(t, "knative_telemetry_metric_exports_total", map[string]string{"settings": "metrics", "outcome": "failed"}); n != 1 {
		t.Errorf("%v failed exports are counted, want 1", n)
	}
}
