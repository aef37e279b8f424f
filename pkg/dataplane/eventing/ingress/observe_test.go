package ingress

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	traceA  = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceB  = "0af7651916cd43dd8448eb211c80319c"
	parentA = "00-" + traceA + "-00f067aa0ba902b7-01"
	parentB = "00-" + traceB + "-b7ad6b7169203331-01"
)

// TestSpans checks that the parent of an event's span is the trace context of the event, or else of the request, and that the
// span is the parent of its deliveries.
func TestSpans(t *testing.T) {
	const event2 = `{"specversion":"1.0","id":"2","source":"/s","type":"t","traceparent":"` + parentB + `"}`
	const event3 = `{"specversion":"1.0","id":"3","source":"/s","type":"t"}`
	for name, test := range map[string]struct {
		headers []string
		body    string
		// traces are the trace IDs of the events; empty for a new one.
		traces []string
		state  string
	}{
		"of the request":            {[]string{"traceparent", parentA, "tracestate", "a=b"}, "", []string{traceA}, "a=b"},
		"of the event":              {[]string{"ce-traceparent", parentB, "ce-tracestate", "c=d"}, "", []string{traceB}, "c=d"},
		"of the event, not request": {[]string{"traceparent", parentA, "tracestate", "a=b", "ce-traceparent", parentB}, "", []string{traceB}, ""},
		"of the event is invalid":   {[]string{"traceparent", parentA, "tracestate", "a=b", "ce-traceparent", "x", "ce-tracestate", "c=d"}, "", []string{traceA}, "a=b"},
		"none":                      {nil, "", []string{""}, ""},
		"broken":                    {[]string{"traceparent", "x"}, "", []string{""}, ""},
		"batch":                     {[]string{"content-type", "application/cloudevents-batch+json"}, "[" + event2 + "," + event3 + "]", []string{traceB, ""}, ""},
		"batch of a request":        {[]string{"traceparent", parentA, "content-type", "application/cloudevents-batch+json"}, "[" + event2 + "," + event3 + "]", []string{traceB, traceA}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := tracetest.NewSpanRecorder()
			var got []*event.Event
			var within trace.SpanContext
			o := options(&memory{})
			o.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
			o.Accept = func(ctx context.Context, _ eventing.Key, events []*event.Event) error {
				got, within = events, trace.SpanContextFromContext(ctx)
				return nil
			}
			headers := append([]string{"b3", "kept"}, test.headers...)
			if reply := do(t, request(t, start(t, o).URL+"/default/orders", strings.NewReader(test.body), headers...)); reply.code != 202 {
				t.Fatalf("got %d %s", reply.code, reply.body)
			}
			spans := recorder.Ended()
			if len(spans) != len(test.traces) || len(got) != len(test.traces) {
				t.Fatalf("there are %d spans of %d events, want %d", len(spans), len(got), len(test.traces))
			}
			for i, span := range spans {
				own := span.SpanContext()
				if span.Name() != "broker:orders.default" || span.SpanKind() != trace.SpanKindServer {
					t.Errorf("the span is a %s named %s", span.SpanKind(), span.Name())
				}
				if want := test.traces[i]; want != "" && (own.TraceID().String() != want || !span.Parent().IsRemote()) {
					t.Errorf("event %d has trace %s, want %s", i, own.TraceID(), want)
				} else if want == "" && span.Parent().IsValid() {
					t.Errorf("event %d has the parent %v, want none", i, span.Parent())
				}
				want := []event.Header{{Name: "b3", Value: "kept"}, {Name: "traceparent", Value: "00-" + own.TraceID().String() + "-" + own.SpanID().String() + "-01"}}
				if test.state != "" {
					want = append(want, event.Header{Name: "tracestate", Value: test.state})
				}
				sorted := cmp.Transformer("sort", func(headers []event.Header) map[string]string {
					byName := map[string]string{}
					for _, h := range headers {
						byName[h.Name] += h.Value
					}
					return byName
				})
				if diff := cmp.Diff(want, got[i].Headers, sorted); diff != "" {
					t.Errorf("event %d carries %s", i, diff)
				}
			}
			if len(spans) == 1 && !within.Equal(spans[0].SpanContext()) {
				t.Errorf("the event is accepted within %v, want its span", within)
			}
			if own, found := got[0].Get("traceparent"); found && own != parentB && own != "x" {
				t.Errorf("the event's attribute is %s, want it unchanged", own)
			}
		})
	}
}

// TestSpanOfRefusal checks that the span of a rejected event has the reason.
func TestSpanOfRefusal(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	o := options(&memory{err: errors.New("oops")})
	o.TracerProvider = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	do(t, request(t, start(t, o).URL+"/default/orders", nil))
	spans := recorder.Ended()
	if len(spans) != 1 || spans[0].Status() != (sdktrace.Status{Code: codes.Error, Description: "oops"}) {
		t.Errorf("got the spans %v, want one that failed", spans)
	}
}

// TestMetrics checks that each response is counted and timed.
func TestMetrics(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	o := options(&memory{err: &Refusal{Status: http.StatusTeapot, Message: "short and stout"}})
	o.Register = registry.MustRegister
	server := start(t, o)
	do(t, request(t, server.URL+"/default/orders", nil))
	do(t, request(t, server.URL+"/default/unknown", nil))
	do(t, request(t, server.URL+"/default/unknown", nil))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			switch family.GetName() {
			case "knative_broker_ingress_requests_total":
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			case "knative_broker_ingress_request_duration_seconds":
				got["timed"] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	want := map[string]float64{"418": 1, "404": 2, "timed": 3,
		"200": 0, "202": 0, "400": 0, "405": 0, "408": 0, "413": 0, "415": 0, "429": 0, "500": 0, "503": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
