// Package otlptest receives traces and metrics by OTLP, like a collector.
package otlptest

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	collectormetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // requests are compressed
	"google.golang.org/protobuf/proto"
)

// Span is a received span.
type Span struct {
	Name, TraceID, ID, Parent string
	Kind                      tracepb.Span_SpanKind
	Start, End                time.Time
	Failed                    bool
	// Attributes and Resource have the values as text.
	Attributes, Resource map[string]string
	// Events are the names of the events.
	Events []string
}

// Metric is a received metric.
type Metric struct {
	Name, Unit string
	Resource   map[string]string
	Points     []Point
}

// Point is a value of a metric, for histograms their count.
type Point struct {
	Attributes map[string]string
	Value      float64
	// Bounds are the bounds of a histogram.
	Bounds []float64
}

// Receiver is a collector with an address of OTLP/gRPC and one of OTLP/HTTP.
type Receiver struct {
	// GRPC and HTTP are the URLs.
	GRPC, HTTP string

	mu sync.Mutex
	// requests are the numbers of requests by "grpc traces", "http metrics" and so on.
	requests map[string]int
	spans    []Span
	metrics  map[string]Metric
	largest  int
}

// Start starts a Receiver, which ends with the test.
func Start(t testing.TB) *Receiver {
	t.Helper()
	r := &Receiver{requests: map[string]int{}, metrics: map[string]Metric{}}
	listen := func() net.Listener {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return listener
	}
	server, listener := grpc.NewServer(), listen()
	collectortrace.RegisterTraceServiceServer(server, traces{Receiver: r})
	collectormetrics.RegisterMetricsServiceServer(server, metrics{Receiver: r})
	go server.Serve(listener) //nolint:errcheck // it ends with Stop
	t.Cleanup(server.Stop)
	r.GRPC = "http://" + listener.Addr().String()

	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, request *http.Request) {
		var body collectortrace.ExportTraceServiceRequest
		answer(w, request, &body, func() { r.addTraces("http traces", &body) })
	})
	mux.HandleFunc("POST /v1/metrics", func(w http.ResponseWriter, request *http.Request) {
		var body collectormetrics.ExportMetricsServiceRequest
		answer(w, request, &body, func() { r.addMetrics("http metrics", &body) })
	})
	plain, web := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}, listen()
	go plain.Serve(web) //nolint:errcheck // it ends with Close
	t.Cleanup(func() { plain.Close() })
	r.HTTP = "http://" + web.Addr().String()
	return r
}

// answer reads a request of OTLP/HTTP and accepts it.
func answer(w http.ResponseWriter, r *http.Request, into proto.Message, accept func()) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	data, err := io.ReadAll(body)
	if err == nil {
		err = proto.Unmarshal(data, into)
	}
	if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, fmt.Sprint("not a request of OTLP/HTTP: ", err), http.StatusBadRequest)
		return
	}
	accept()
	w.Header().Set("Content-Type", "application/x-protobuf")
}

type traces struct {
	collectortrace.UnimplementedTraceServiceServer
	*Receiver
}

// Export implements the service of OTLP.
func (r traces) Export(_ context.Context, request *collectortrace.ExportTraceServiceRequest) (*collectortrace.ExportTraceServiceResponse, error) {
	r.addTraces("grpc traces", request)
	return &collectortrace.ExportTraceServiceResponse{}, nil
}

type metrics struct {
	collectormetrics.UnimplementedMetricsServiceServer
	*Receiver
}

// Export implements the service of OTLP.
func (r metrics) Export(_ context.Context, request *collectormetrics.ExportMetricsServiceRequest) (*collectormetrics.ExportMetricsServiceResponse, error) {
	r.addMetrics("grpc metrics", request)
	return &collectormetrics.ExportMetricsServiceResponse{}, nil
}

func (r *Receiver) addTraces(by string, request *collectortrace.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests[by]++
	for _, of := range request.GetResourceSpans() {
		resource := resourceOf(of.GetResource())
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				span := Span{
					Name: s.GetName(), TraceID: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
					Kind: s.GetKind(), Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
					Failed: s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR, Attributes: textsOf(s.GetAttributes()), Resource: resource,
				}
				for _, event := range s.GetEvents() {
					span.Events = append(span.Events, event.GetName())
				}
				r.spans = append(r.spans, span)
			}
		}
	}
}

func (r *Receiver) addMetrics(by string, request *collectormetrics.ExportMetricsServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests[by]++
	points := 0
	for _, of := range request.GetResourceMetrics() {
		resource := resourceOf(of.GetResource())
		for _, scope := range of.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				metric := Metric{Name: m.GetName(), Unit: m.GetUnit(), Resource: resource, Points: pointsOf(m)}
				points += len(metric.Points)
				r.metrics[metric.Name] = metric
			}
		}
	}
	r.largest = max(r.largest, points)
}

func pointsOf(m *metricspb.Metric) (points []Point) {
	numbers := m.GetGauge().GetDataPoints()
	if sum := m.GetSum(); sum != nil {
		numbers = sum.GetDataPoints()
	}
	for _, p := range numbers {
		points = append(points, Point{Attributes: textsOf(p.GetAttributes()), Value: p.GetAsDouble()})
	}
	for _, p := range m.GetHistogram().GetDataPoints() {
		points = append(points, Point{Attributes: textsOf(p.GetAttributes()), Value: float64(p.GetCount()), Bounds: p.GetExplicitBounds()})
	}
	return points
}

func resourceOf(r *resourcepb.Resource) map[string]string { return textsOf(r.GetAttributes()) }

func textsOf(attributes []*commonpb.KeyValue) map[string]string {
	texts := map[string]string{}
	for _, a := range attributes {
		switch v := a.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			texts[a.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			texts[a.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		case *commonpb.AnyValue_BoolValue:
			texts[a.GetKey()] = strconv.FormatBool(v.BoolValue)
		default:
			texts[a.GetKey()] = fmt.Sprint(v)
		}
	}
	return texts
}

// Requests returns the number of requests of a kind, such as "grpc traces" or "http metrics".
func (r *Receiver) Requests(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.requests[kind]
}

// Largest returns the number of points of the largest request with metrics.
func (r *Receiver) Largest() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.largest
}

// Spans returns the received spans of a trace, or all spans if the ID is empty.
func (r *Receiver) Spans(traceID string) (spans []Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		if traceID == "" || s.TraceID == traceID {
			spans = append(spans, s)
		}
	}
	return spans
}

// Span returns the span of a name in a trace.
func (r *Receiver) Span(traceID, name string) (Span, bool) {
	for _, s := range r.Spans(traceID) {
		if s.Name == name {
			return s, true
		}
	}
	return Span{}, false
}

// Metric returns the latest value of a metric.
func (r *Receiver) Metric(name string) (Metric, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, found := r.metrics[name]
	return m, found
}
