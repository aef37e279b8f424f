package trace

import (
	"context"
	"encoding/json"

	"github.com/cespare/xxhash/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Origin is where events come from.
type Origin struct {
	// Sender is the verified name of the sender, or empty. Address is the IP address of the client, or empty.
	Sender, Address string
	// Cause is the delivery to which an event is the reply, or zero.
	Cause Cause
	// Redelivered is true for stored events that are delivered again.
	Redelivered bool
}

type originKey struct{}

// WithOrigin returns a context with the origin of the events that are accepted with it. It decides nothing.
func WithOrigin(ctx context.Context, origin *Origin) context.Context {
	return context.WithValue(ctx, originKey{}, origin)
}

// OriginOf returns the origin of events that are accepted with a context.
func OriginOf(ctx context.Context) Origin {
	if origin, ok := ctx.Value(originKey{}).(*Origin); ok {
		return *origin
	}
	return Origin{}
}

// TraceIDOf returns the W3C trace ID of an event in 32 hexadecimal digits, or an empty string. Headers come first: they name the last one
// that handled the event.
func TraceIDOf(e *event.Event) string {
	for i := range e.Headers {
		if e.Headers[i].Name == "traceparent" {
			return traceIDIn(e.Headers[i].Value)
		}
	}
	value, _ := e.Get("traceparent")
	return traceIDIn(value)
}

// traceIDIn returns the trace ID in the value of a traceparent header (W3C Trace Context, 3.2.2), or an empty string.
func traceIDIn(traceparent string) string {
	const begin, end = len("00-"), len("00-") + 32
	if len(traceparent) < end || traceparent[begin-1] != '-' {
		return ""
	}
	if _, ok := parseTraceID(traceparent[begin:end]); !ok {
		return ""
	}
	return traceparent[begin:end]
}

// Fingerprint returns a hash of the filters of a consumer. The filters of several consumers are the same if the exclusive or of their
// hashes is.
func Fingerprint(c *eventing.Consumer) uint64 {
	filters := struct {
		UID        string
		Attributes map[string]string
		Filters    []eventing.Filter
	}{string(c.UID), c.Attributes, c.Filters}
	// It has maps of strings only, which are encoded in the order of their keys.
	encoded, _ := json.Marshal(filters)
	return xxhash.Sum64(encoded)
}
