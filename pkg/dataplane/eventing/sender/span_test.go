package sender

import (
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestSpans checks that each attempt has a span, a child of the event's, which the recipient gets instead of the event's.
func TestSpans(t *testing.T) {
	const traceID, spanID, attributeTraceID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "1af7651916cd43dd8448eb211c80319c"
	asHeader, asAttribute, none := order(), order(), order()
	asHeader.Headers = []event.Header{{Name: "traceparent", Value: "00-" + traceID + "-" + spanID + "-01"}, {Name: "tracestate", Value: "a=b"}}
	asAttribute.Attributes = append(asAttribute.Attributes, event.Attribute{Name: "traceparent", Value: "00-" + attributeTraceID + "-" + spanID + "-01"})
	for _, tt := range []struct {
		name, traceID, parent string
		event                 *event.Event
		code                  int
	}{
		{"header", traceID, spanID, asHeader, 202},
		{"attribute", attributeTraceID, spanID, asAttribute, 202},
		{"none", "", "0000000000000000", none, 202},
		{"error", traceID, spanID, asHeader, 503},
	} {
		t.Run(tt.name, func(t *testing.T) {
			recorder := tracetest.NewSpanRecorder()
			provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
			var header http.Header
			to := serve(t, func(w http.ResponseWriter, r *http.Request) {
				header = r.Header
				w.WriteHeader(tt.code)
			})
			s := newSender(t, Options{TracerProvider: provider})
			s.Send(t.Context(), tt.event, to, Attempt{Consumer: eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: "orders"}})

			spans := recorder.Ended()
			if len(spans) != 1 || spans[0].Name() != "trigger:orders.shop" {
				t.Fatalf("spans %v", spans)
			}
			span := spans[0]
			if got := span.Parent().SpanID().String(); got != tt.parent {
				t.Errorf("parent %s, want %s", got, tt.parent)
			}
			if got := span.SpanContext().TraceID().String(); tt.traceID != "" && got != tt.traceID {
				t.Errorf("trace %s, want %s", got, tt.traceID)
			}
			if want := "00-" + span.SpanContext().TraceID().String() + "-" + span.SpanContext().SpanID().String() + "-01"; strings.Join(header["Traceparent"], ",") != want {
				t.Errorf("the recipient got traceparent %v, want %s", header["Traceparent"], want)
			}
			if failed := span.Status().Code == codes.Error; failed != (tt.code == 503) {
				t.Errorf("status %v", span.Status())
			}
		})
	}
}
