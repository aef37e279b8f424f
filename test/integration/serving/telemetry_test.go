package serving

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/otlptest"
)

// traced sends a request that belongs to a trace, which the client records, and returns the ID of the trace.
func (s *site) traced(t testing.TB, n int) string {
	t.Helper()
	id := fmt.Sprintf("4bf92f3577b34da6a3ce929d%08x", n)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/?secret", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Traceparent", "00-"+id+"-00f067aa0ba902b7-01")
	a, err := s.do(request)
	if err != nil {
		t.Fatal(err)
	}
	if a.code != http.StatusOK {
		t.Fatalf("traced request: %d %s", a.code, a.body)
	}
	return id
}

// awaitSpans waits for the spans of a trace by name.
func awaitSpans(t testing.TB, r *otlptest.Receiver, trace string, n int) map[string]otlptest.Span {
	t.Helper()
	spans := map[string]otlptest.Span{}
	harness.Eventually(t, "spans of trace "+trace, func() error {
		for _, span := range r.Spans(trace) {
			spans[span.Name] = span
		}
		if len(spans) < n {
			return fmt.Errorf("have %v", spans)
		}
		return nil
	})
	return spans
}

// TestTelemetry checks traces and metrics of requests by OTLP: the phases of a request from zero, changes of the settings without restart, an endpoint
// that does not answer, and the last spans at the end.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	first, second := otlptest.Start(t), otlptest.Start(t)
	config := writeSettings(t, map[string]map[string]string{
		"config-autoscaler": {"allow-zero-initial-scale": "true"},
		settings.ObservabilityConfigMapName: {
			"tracing-protocol": "grpc", "tracing-endpoint": first.GRPC,
			"request-metrics-protocol": "grpc", "request-metrics-endpoint": first.GRPC, "request-metrics-export-interval": "1s",
		},
	})
	dir := t.TempDir()
	s := start(t, dir, "--config-dir", config.dir).newSite(t, "traced", scaling("initial-scale", "0"))

	// A request from zero.
	id := s.traced(t, 1)
	spans := awaitSpans(t, first, id, 4)
	request := spans["GET"]
	got := map[string]string{"GET": request.Parent}
	for _, name := range []string{"queue", "cold start", "forward"} {
		for parent, span := range spans {
			if span.ID == spans[name].Parent {
				got[name] = parent
			}
		}
		if spans[name].Start.Before(request.Start) || spans[name].End.After(request.End) {
			t.Errorf("%s is not within the request", name)
		}
	}
	if diff := cmp.Diff(map[string]string{"GET": "00f067aa0ba902b7", "queue": "GET", "cold start": "queue", "forward": "GET"}, got); diff != "" {
		t.Errorf("parents of spans (-want +got):\n%s", diff)
	}
	want := map[string]string{
		"http.request.method": "GET", "http.response.status_code": "200", "url.path": "/", "server.address": s.host, "k8s.namespace.name": s.namespace,
		"kn.service.name": s.name, "kn.configuration.name": s.name, "kn.revision.name": s.revision(t).Name,
	}
	for key, value := range want {
		if request.Attributes[key] != value {
			t.Errorf("attribute %s is %q, want %q", key, request.Attributes[key], value)
		}
	}
	if request.Resource["service.name"] != "knative-apiserver" {
		t.Errorf("the resource is %v", request.Resource)
	}

	// Metrics by the names of Knative.
	harness.Eventually(t, "metrics of requests", func() error {
		m, found := first.Metric("kn.serving.invocation.duration")
		if !found || len(m.Points) != 1 || m.Unit != "s" {
			return fmt.Errorf("have %+v", m)
		}
		point := otlptest.Point{Value: 1, Bounds: m.Points[0].Bounds, Attributes: map[string]string{
			"http.response.status_code": "200", "k8s.namespace.name": s.namespace, "kn.service.name": s.name, "kn.configuration.name": s.name, "kn.revision.name": s.revision(t).Name,
		}}
		if diff := cmp.Diff(point, m.Points[0]); diff != "" || len(point.Bounds) != 14 {
			return fmt.Errorf("%d bounds, (-want +got):\n%s", len(point.Bounds), diff)
		}
		return nil
	})
	labels := []string{fmt.Sprintf("k8s_namespace_name=%q", s.namespace), fmt.Sprintf("kn_revision_name=%q", s.revision(t).Name)}
	for name, want := range map[string]float64{
		"kn_serving_invocation_duration_seconds_count": 1, "http_server_request_duration_seconds_count": 1, "kn_revision_request_queued": 0,
		"kn_revision_request_active": 0, "kn_revision_pods_desired": 1, "kn_revision_pods_count": 1, "kn_revision_panic_mode": 0,
	} {
		harness.Eventually(t, fmt.Sprintf("%s is %v", name, want), func() error {
			value, found, err := s.metric(t.Context(), name, labels...)
			if err == nil && (!found || value != want) {
				err = fmt.Errorf("it is %v", value)
			}
			return err
		})
	}

	// Another endpoint and protocol.
	use := func(data map[string]string, reached func() bool) {
		t.Helper()
		config.write(t, settings.ObservabilityConfigMapName, data)
		harness.Eventually(t, fmt.Sprintf("%v applies", data), func() error {
			if !reached() {
				return errors.New("it does not")
			}
			return nil
		})
	}
	n := 1
	use(map[string]string{"tracing-protocol": "http/protobuf", "tracing-endpoint": second.HTTP}, func() bool {
		n++
		s.traced(t, n)
		return len(second.Spans("")) > 0
	})
	if second.Requests("http traces") == 0 {
		t.Error("the second endpoint got no request of OTLP/HTTP")
	}

	// An endpoint that does not answer, then none.
	failures := func() float64 {
		value, _, err := s.metric(t.Context(), "knative_telemetry_spans_total", `outcome="failed"`)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	use(map[string]string{"tracing-protocol": "grpc", "tracing-endpoint": "http://127.0.0.1:1", "tracing-sampling-rate": "1"}, func() bool {
		s.mustGet(t, s.url+"/")
		return failures() > 0
	})
	began := time.Now()
	for range 100 {
		s.mustGet(t, s.url+"/")
	}
	t.Logf("100 requests with an unreachable endpoint took %v", time.Since(began))

	// The last spans are exported when the server stops.
	use(map[string]string{"tracing-protocol": "http/protobuf", "tracing-endpoint": first.HTTP}, func() bool {
		n++
		s.traced(t, n)
		return first.Requests("http traces") > 0
	})
	// The server gives up the last export after 5 s, for which a process may be stalled.
	const attempts = 3
	exported := false
	for range attempts {
		n++
		last := s.traced(t, n)
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if _, exported = first.Span(last, "GET"); exported {
			break
		}
		s.server = start(t, dir, "--config-dir", config.dir)
	}
	if !exported {
		t.Errorf("the last span was lost each time the server stopped, %d times", attempts)
	}
}

// TestCollector checks that a collector of OpenTelemetry receives the spans and metrics of requests by both protocols.
func TestCollector(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			collector := harness.RunCollector(t)
			endpoint := collector.Endpoints[protocol]
			config := writeSettings(t, map[string]map[string]string{settings.ObservabilityConfigMapName: {
				"tracing-protocol": protocol, "tracing-endpoint": endpoint,
				"request-metrics-protocol": protocol, "request-metrics-endpoint": endpoint, "request-metrics-export-interval": "1s",
			}})
			s := start(t, t.TempDir(), "--config-dir", config.dir).newSite(t, "collected")
			collector.Await(t, s.traced(t, 1), []string{"GET", "forward"}, "kn.serving.invocation.duration")
		})
	}
}
