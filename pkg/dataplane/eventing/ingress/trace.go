package ingress

import (
	"context"
	"net/http"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const traceparent, tracestate = "traceparent", "tracestate"

// traced accepts events within a span for each. Its parent is the event's own (CloudEvents Distributed Tracing extension
// 1.0.2), or else that of the request. The events carry their spans on as parents of their deliveries; their attributes
// stay as they are.
func (h *Handler) traced(r *http.Request, start time.Time, to eventing.Key, events []*event.Event) error {
	w3c := propagation.TraceContext{}
	fromRequest := w3c.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	spans := make([]trace.Span, len(events))
	for i, e := range events {
		// What is not valid leaves the request's.
		parent := w3c.Extract(fromRequest, attributesCarrier{e})
		var ctx context.Context
		ctx, spans[i] = h.tracer.Start(parent, "broker ingress", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(start))
		if spans[i].IsRecording() {
			spans[i].SetAttributes(describe(to, e)...)
		}
		if spans[i].SpanContext().IsValid() {
			// The events of a batch share their headers.
			e.Headers = slices.DeleteFunc(slices.Clone(e.Headers), isTraceContext)
			w3c.Inject(ctx, headersCarrier{e})
		}
	}
	// Of one event, what accepts it sees the span.
	ctx := r.Context()
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

func isTraceContext(header event.Header) bool {
	return header.Name == traceparent || header.Name == tracestate
}

func describe(to eventing.Key, e *event.Event) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		attribute.String("http.request.method", http.MethodPost),
		attribute.String("messaging.destination.name", to.String()),
	}
	for _, name := range [...]string{event.ID, event.Source, event.EventType, event.Subject} {
		if value, found := e.Get(name); found {
			attributes = append(attributes, attribute.String("cloudevents.event_"+name, value))
		}
	}
	return append(attributes, attribute.String("cloudevents.event_spec_version", "1.0"))
}

// attributesCarrier reads the trace context of an event's attributes.
type attributesCarrier struct{ *event.Event }

// Get returns an attribute.
func (c attributesCarrier) Get(key string) string {
	value, _ := c.Event.Get(key)
	return value
}

// Set does nothing: attributes stay as they are.
func (attributesCarrier) Set(string, string) {}

// Keys returns those that there may be.
func (attributesCarrier) Keys() []string { return []string{traceparent, tracestate} }

// headersCarrier writes the trace context to the headers that travel with an event.
type headersCarrier struct{ *event.Event }

// Get returns nothing: these are written only.
func (headersCarrier) Get(string) string { return "" }

// Set adds a header.
func (c headersCarrier) Set(key, value string) {
	c.Headers = append(c.Headers, event.Header{Name: key, Value: value})
}

// Keys returns those that there may be.
func (headersCarrier) Keys() []string { return []string{traceparent, tracestate} }
