package sender

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// traceParent is the header and the attribute (CloudEvents, Distributed Tracing) of an event that name its span.
const traceParent = "traceparent"

// startSpan starts the span of an attempt, a child of the event's own, unless nothing is traced.
func (s *Sender) startSpan(ctx context.Context, e *event.Event, consumer eventing.Key) (context.Context, trace.Span) {
	if s.tracer == nil || s.traces != nil && !s.traces() {
		return ctx, nil
	}
	ctx = propagation.TraceContext{}.Extract(ctx, carrier{e})
	ctx, span := s.tracer.Start(ctx, consumer.Label(), trace.WithSpanKind(trace.SpanKindClient))
	if span.IsRecording() {
		attributes := []attribute.KeyValue{
			attribute.String("messaging.system", "knative"),
			attribute.String("messaging.operation.name", "send"),
			attribute.String("messaging.destination.name", consumer.Label()),
			attribute.String("k8s.namespace.name", consumer.Namespace),
		}
		for _, name := range []string{event.ID, event.Source, event.EventType} {
			value, _ := e.Get(name)
			attributes = append(attributes, attribute.String("cloudevents.event_"+name, strings.ToValidUTF8(value, "\ufffd")))
		}
		span.SetAttributes(attributes...)
	}
	return ctx, span
}

// endSpan ends the span of an attempt with its result. The span may be nil.
func endSpan(span trace.Span, r Result) {
	if span == nil {
		return
	}
	if r.Code != 0 {
		span.SetAttributes(attribute.Int("http.response.status_code", r.Code))
	}
	if r.Err != nil {
		span.SetStatus(codes.Error, strings.ToValidUTF8(r.Err.Error(), "\ufffd"))
	}
	span.End()
}

// injectSpan sets the headers that name the span of an attempt, instead of the event's own.
func injectSpan(ctx context.Context, header http.Header) {
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))
}

// carrier reads the trace context of an event. Headers come first: they name the last one that handled the event.
type carrier struct{ *event.Event }

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string {
	for i := range c.Headers {
		if strings.EqualFold(c.Headers[i].Name, key) {
			return c.Headers[i].Value
		}
	}
	if key == traceParent || key == "tracestate" {
		value, _ := c.Event.Get(key)
		return value
	}
	return ""
}

// Set implements propagation.TextMapCarrier. Events do not change.
func (carrier) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (carrier) Keys() []string { return []string{traceParent, "tracestate"} }
