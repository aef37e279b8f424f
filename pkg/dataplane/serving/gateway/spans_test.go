package gateway

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// recordedTracing is a Tracing that records.
type recordedTracing struct {
	oteltrace.Tracer
	*tracetest.SpanRecorder
	enabled, sample bool
}

func newRecordedTracing() *recordedTracing {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	return &recordedTracing{Tracer: provider.Tracer("test"), SpanRecorder: recorder, enabled: true}
}

func (r *recordedTracing) Enabled() bool { return r.enabled }
func (r *recordedTracing) Sample() bool  { return r.sample }

// TestSampledRequests checks which requests have spans on both paths, and the traceparent that the backend gets.
func TestSampledRequests(t *testing.T) {
	const parent = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
	for name, test := range map[string]struct {
		header          string
		enabled, sample bool
		// spans is the number of spans, flags the end of the backend's traceparent, continues whether it has the trace of the client.
		spans     int
		flags     string
		continues bool
	}{
		"sampled by the client":           {"00-" + parent + "-01", true, false, 2, "01", true},
		"not sampled by the client":       {"00-" + parent + "-00", true, true, 0, "00", true},
		"sampled by the rate":             {"", true, true, 2, "01", false},
		"not sampled by the rate":         {"", true, false, 0, "00", false},
		"nothing is exported":             {"", false, true, 0, "01", false},
		"nothing is exported, continued":  {"00-" + parent + "-01", false, true, 0, "01", true},
		"invalid parent, sampled by rate": {"00-x", true, true, 2, "01", false},
	} {
		for _, standard := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", fast path", true: ", standard path"}[standard], func(t *testing.T) {
				tracing := newRecordedTracing()
				tracing.enabled, tracing.sample = test.enabled, test.sample
				received := make(chan string, 1)
				b := serve(t, Options{StandardOnly: standard, Tracing: tracing}, revision(0), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					received <- r.Header.Get("Traceparent")
				}))
				request := b.request(t, http.MethodGet, nil)
				if test.header != "" {
					request.Header.Set("Traceparent", test.header)
				}
				b.do(t, request)
				got := <-received
				if got[53:] != test.flags || (got[3:35] == parent[:32]) != test.continues {
					t.Errorf("the backend gets %s", got)
				}
				spans := tracing.await(t, test.spans)
				if test.spans == 0 {
					return
				}
				forward, server := spans[forwardSpan], spans["GET"]
				if want := "00-" + forward.SpanContext().TraceID().String() + "-" + forward.SpanContext().SpanID().String() + "-01"; got != want {
					t.Errorf("the backend gets %s, want the span at it, %s", got, want)
				}
				if forward.Parent().SpanID() != server.SpanContext().SpanID() || forward.SpanKind() != oteltrace.SpanKindClient || server.SpanKind() != oteltrace.SpanKindServer {
					t.Errorf("spans %v and %v", server, forward)
				}
				if test.continues && (!server.Parent().IsRemote() || server.Parent().SpanID().String() != parent[33:]) {
					t.Errorf("the parent of the request is %v", server.Parent())
				}
				attributes := map[string]string{}
				for _, a := range server.Attributes() {
					attributes[string(a.Key)] = a.Value.String()
				}
				want := map[string]string{
					"http.request.method": "GET", "url.scheme": "http", "url.path": "/path", "server.address": "app", "network.protocol.name": "http", "network.protocol.version": "1.1",
					"http.response.status_code": "200",
				}
				for key := range attributes {
					if _, asked := want[key]; !asked {
						delete(attributes, key)
					}
				}
				if diff := cmp.Diff(want, attributes); diff != "" {
					t.Errorf("attributes (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// await returns the ended spans by name, once there are n: a request ends after its response.
func (r *recordedTracing) await(t *testing.T, n int) map[string]sdktrace.ReadOnlySpan {
	t.Helper()
	eventually(t, "end of the spans", func() bool { return len(r.Ended()) >= n })
	all := map[string]sdktrace.ReadOnlySpan{}
	for _, span := range r.Ended() {
		all[span.Name()] = span
	}
	if len(all) != n {
		t.Fatalf("there are the spans %v, want %d", all, n)
	}
	return all
}

// TestColdStartSpans checks the spans of a request to a Revision without backend, and of one that no backend gets.
func TestColdStartSpans(t *testing.T) {
	for _, forwarder := range forwarders {
		t.Run(forwarder.name, func(t *testing.T) {
			app := listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
			tracing := newRecordedTracing()
			tracing.sample = true
			activated := make(chan routing.Key, 1)
			b := serve(t, Options{StandardOnly: forwarder.standardOnly, Tracing: tracing, Activate: func(key routing.Key) { activated <- key }}, revision(0), nil)
			go func() { b.SetInstances(<-activated, []workload.Instance{{Name: "a", Address: app}}) }()
			b.do(t, b.request(t, http.MethodGet, nil))
			spans := tracing.await(t, 4)
			parents := map[string]string{}
			for name, span := range spans {
				for other, parent := range spans {
					if span.Parent().SpanID() == parent.SpanContext().SpanID() {
						parents[name] = other
					}
				}
				if span.StartTime().Before(spans["GET"].StartTime()) || span.EndTime().After(spans["GET"].EndTime()) {
					t.Errorf("%s is not within the request", name)
				}
			}
			if diff := cmp.Diff(map[string]string{queueSpan: "GET", coldStartSpan: queueSpan, forwardSpan: "GET"}, parents); diff != "" {
				t.Errorf("parents (-want +got):\n%s", diff)
			}
			if spans[queueSpan].EndTime().After(spans[forwardSpan].StartTime()) {
				t.Error("the request is forwarded before it has a backend")
			}
			if events := spans[forwardSpan].Events(); len(events) != 1 || events[0].Name != "response started" {
				t.Errorf("the events at the backend are %v", events)
			}
			if spans["GET"].Status().Code != codes.Error || spans[queueSpan].Status().Code == codes.Error {
				t.Error("the spans of a response 503 do not show where it failed")
			}
		})
	}
}

// TestSpanText checks that text of clients is valid and bounded, as OTLP requires.
func TestSpanText(t *testing.T) {
	if got := text("a\xffb"); got != "a\ufffdb" {
		t.Errorf("text that is not UTF-8 becomes %q", got)
	}
	if got := text(strings.Repeat("x", 2*maxLogged)); len(got) != maxLogged {
		t.Errorf("long text becomes %d bytes", len(got))
	}
}

// TestUnsampledAllocations checks that requests without span do not allocate for tracing, with and without the client's trace.
func TestUnsampledAllocations(t *testing.T) {
	tracing := newRecordedTracing()
	g := New(Options{Tracing: tracing})
	g.SetRevision(revision(0))
	p := poolOf(g)
	for name, head := range map[string]*http1.Head{
		"new trace": {Method: []byte("GET")},
		"unsampled": {Method: []byte("GET"), Fields: []http1.Field{{Name: []byte(traceparentField), Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")}}},
	} {
		in := inbound{head: head}
		allocated := testing.AllocsPerRun(1000, func() {
			x := g.chain.begin(in, p, nil)
			x.result.Status = http.StatusOK
			x.end()
		})
		if allocated != 0 {
			t.Errorf("%s: a request allocates %v times", name, allocated)
		}
	}
	if spans := tracing.Started(); len(spans) > 0 {
		t.Errorf("there are the spans %v", spans)
	}
}

// BenchmarkTracing measures the part of the chain that begins and ends a request, by the sampling of traces.
func BenchmarkTracing(b *testing.B) {
	recording := sampledTracing{sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(discard{})).Tracer("test")}
	for name, o := range map[string]Options{"none": {}, "unsampled": {Tracing: newRecordedTracing()}, "sampled": {Tracing: recording}} {
		b.Run(name, func(b *testing.B) {
			g := New(o)
			g.SetRevision(revision(0))
			p, in := poolOf(g), inbound{head: &http1.Head{Method: []byte("GET"), Host: []byte("hello.default.example.com"), Target: []byte("/path")}}
			b.ReportAllocs()
			for b.Loop() {
				x := g.chain.begin(in, p, nil)
				x.beginForward(nil)
				x.ResponseStarted()
				x.result.Status = http.StatusOK
				x.end()
			}
		})
	}
}

// sampledTracing is a Tracing that samples all requests and exports none.
type sampledTracing struct{ oteltrace.Tracer }

func (sampledTracing) Enabled() bool { return true }
func (sampledTracing) Sample() bool  { return true }

// discard is an sdktrace.SpanProcessor.
type discard struct{}

func (discard) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (discard) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (discard) Shutdown(context.Context) error                  { return nil }
func (discard) ForceFlush(context.Context) error                { return nil }
