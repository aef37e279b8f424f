package ingress

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const traceparent, tracestate = "traceparent", "tracestate"

// traced accepts events with a span for each. Its parent is the trace context of the event (CloudEvents Distributed Tracing
// extension 1.0.2), or else of the request. The headers of the events carry their spans as parents of their deliveries; their
// attributes do not change.
func (h *Handler) traced(ctx context.Context, header http.Header, start time.Time, to eventing.Key, events []*event.Event) error {
	w3c := propagation.TraceContext{}
	fromRequest := w3c.Extract(ctx, propagation.HeaderCarrier(header))
	spans := make([]trace.Span, len(events))
	for i, e := range events {
		// An invalid trace context of the event leaves the context of the request.
		parent := w3c.Extract(fromRequest, attributesCarrier{e})
		var within context.Context
		within, spans[i] = h.tracer.Start(parent, to.Label(), trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start))
		if spans[i].IsRecording() {
			spans[i].SetAttributes(describe(to, e)...)
		}
		if spans[i].SpanContext().IsValid() {
			// The events of a batch share one slice of headers.
			e.Headers = slices.DeleteFunc(slices.Clone(e.Headers), isTraceContext)
			w3c.Inject(within, headersCarrier{e})
		}
	}
	// Accept receives the span of a single event.
	if len(spans) == 1 {
		ctx = trace.ContextWithSpan(ctx, spans[0])
	}
	err := h.accept(ctx, to, events)
	for _, span := range spans {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
	return err
}

// isTraceContext reports whether a header holds the trace context.
func isTraceContext(header event.Header) bool {
	return header.Name == traceparent || header.Name == tracestate
}

// describe returns the attributes of the span of an event.
func describe(to eventing.Key, e *event.Event) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		attribute.String("http.request.method", http.MethodPost),
		attribute.String("messaging.system", "knative"),
		attribute.String("messaging.operation.name", "send"),
		attribute.String("messaging.destination.name", to.Label()),
		attribute.String("k8s.namespace.name", to.Namespace),
	}
	for _, name := range [...]string{event.ID, event.Source, event.EventType, event.Subject} {
		if value, found := e.Get(name); found {
			attributes = append(attributes, attribute.String("cloudevents.event_"+name, strings.ToValidUTF8(value, "\ufffd")))
		}
	}
	return append(attributes, attribute.String("cloudevents.event_spec_version", "1.0"))
}

// attributesCarrier reads the trace context from the attributes of an event.
type attributesCarrier struct{ *event.Event }

// Get returns an attribute.
func (c attributesCarrier) Get(key string) string {
	value, _ := c.Event.Get(key)
	return value
}

// Set does nothing: attributes do not change.
func (attributesCarrier) Set(string, string) {}

// Keys returns the possible keys.
func (attributesCarrier) Keys() []string { return []string{traceparent, tracestate} }

// headersCarrier writes the trace context to the headers of an event.
type headersCarrier struct{ *event.Event }

// Get returns an empty string: the carrier only writes.
func (headersCarrier) Get(string) string { return "" }

// Set adds a header.
func (c headersCarrier) Set(key, value string) {
	c.Headers = append(c.Headers, event.Header{Name: key, Value: value})
}

// Keys returns the possible keys.
func (headersCarrier) Keys() []string { return []string{traceparent, tracestate} }
