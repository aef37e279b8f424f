package gateway

import (
	"context"
	"encoding/hex"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
)

// Tracing selects the requests that are traced, and makes their spans. A request without span costs a call of Enabled, and of Sample if it
// begins a trace. telemetry.Tracing implements it.
type Tracing interface {
	// Enabled reports whether spans are exported.
	Enabled() bool
	// Sample decides whether a new trace is sampled.
	Sample() bool
	// Start starts a span that is sampled.
	Start(ctx context.Context, name string, options ...oteltrace.SpanStartOption) (context.Context, oteltrace.Span)
}

// The names of spans within the span of a request, which is named by its method. queueSpan is the wait for a backend, coldStartSpan the part
// of it that begins without a usable backend, forwardSpan the time at the backend or another replica.
const (
	queueSpan, coldStartSpan, forwardSpan = "queue", "cold start", "forward"
)

// spans are the spans of one request.
type spans struct {
	tracing Tracing
	// ctx has the span of the request.
	ctx     context.Context
	request oteltrace.Span
	// attributes are the attributes of the request. Its span gets them at its end: it copies all it has whenever it gets more.
	attributes []attribute.KeyValue
	// waiting is the time since when the request waits, or zero.
	waiting time.Time
	// forward is the span from the first attempt on, or nil. backend is the backend of the last attempt, or nil.
	forward oteltrace.Span
	backend *pool.Backend
}

// requestAttributes is the number of attributes that a request has at most.
const requestAttributes = 14

var tracedRequests = sync.Pool{New: func() any { return &spans{attributes: make([]attribute.KeyValue, 0, requestAttributes)} }}

// beginTrace sets the trace of the exchange: it continues the client's, or begins one. While traces are exported, new ones are sampled at the
// configured rate. Otherwise applications decide: like a client that begins a trace, the gateway marks it as sampled.
func (x *exchange) beginTrace() {
	if x.in.head != nil {
		x.newTrace = setTrace(&x.trace, only(x.in.head, traceparentField))
	} else {
		parent := ""
		if values := x.in.request.Header.Values(traceparentField); len(values) == 1 {
			parent = values[0]
		}
		x.newTrace = x.trace.set(parent)
	}
	tracing := x.chain.options.Tracing
	if tracing == nil || !tracing.Enabled() {
		return
	}
	switch {
	case !x.newTrace && x.trace.sampled(), x.newTrace && tracing.Sample():
		x.beginSpans(tracing)
	case x.newTrace:
		x.trace[54] = '0'
	}
}

// beginSpans starts the span of the request.
func (x *exchange) beginSpans(tracing Tracing) {
	ctx := context.Background()
	if !x.newTrace {
		ctx = oteltrace.ContextWithRemoteSpanContext(ctx, x.parent())
	}
	method := x.in.method()
	x.spans = tracedRequests.Get().(*spans)
	x.spans.tracing, x.spans.attributes = tracing, x.describe(x.spans.attributes, method)
	name := method
	if name == pool.OtherMethod {
		name = "HTTP"
	}
	x.spans.ctx, x.spans.request = tracing.Start(ctx, name, oteltrace.WithSpanKind(oteltrace.SpanKindServer), oteltrace.WithTimestamp(x.begun))
	x.setTrace(x.spans.request.SpanContext())
}

// parent returns the span of the client, which a valid header names.
func (x *exchange) parent() oteltrace.SpanContext {
	var header, state string
	if x.in.head != nil {
		header, state = string(only(x.in.head, traceparentField)), string(only(x.in.head, tracestateField))
	} else {
		header, state = x.in.request.Header.Get(traceparentField), strings.Join(x.in.request.Header.Values(tracestateField), ",")
	}
	config := oteltrace.SpanContextConfig{TraceFlags: oteltrace.FlagsSampled, Remote: true}
	hex.Decode(config.TraceID[:], []byte(header[3:35])) //nolint:errcheck // the header is valid
	hex.Decode(config.SpanID[:], []byte(header[36:52])) //nolint:errcheck // the header is valid
	// A malformed state is ignored here, and sent on like any other.
	config.TraceState, _ = oteltrace.ParseTraceState(state)
	return oteltrace.NewSpanContext(config)
}

// setTrace makes a span the parent of spans of the backend.
func (x *exchange) setTrace(parent oteltrace.SpanContext) {
	id, span := parent.TraceID(), parent.SpanID()
	hex.Encode(x.trace[3:35], id[:])
	hex.Encode(x.trace[36:52], span[:])
	x.trace[54] |= 1
}

// describe adds the attributes of the request that are known when it arrives.
func (x *exchange) describe(attributes []attribute.KeyValue, method string) []attribute.KeyValue {
	in := &x.in
	var host, target, version, agent string
	if in.head != nil {
		host, target, version, agent = text(in.head.Host), text(in.head.Target), "1.1", text(in.head.Get("user-agent"))
	} else {
		host, target, agent = text(in.request.Host), text(in.request.RequestURI), text(in.request.UserAgent())
		// HTTP/2.0 and HTTP/3.0 have the versions 2 and 3.
		if version = strings.TrimPrefix(in.request.Proto, "HTTP/"); in.request.ProtoMajor > 1 {
			version = strings.TrimSuffix(version, ".0")
		}
	}
	// The query may have secrets.
	path, _, _ := strings.Cut(target, "?")
	attributes = append(attributes,
		attribute.String("http.request.method", method),
		attribute.String("url.scheme", schemeName(in.https)),
		attribute.String("url.path", path),
		attribute.String("server.address", host),
		attribute.String("network.protocol.name", "http"),
		attribute.String("network.protocol.version", version),
		attribute.String("k8s.namespace.name", x.pool.Key().Namespace),
		attribute.String("kn.revision.name", x.pool.Key().Name),
	)
	if agent != "" {
		attributes = append(attributes, attribute.String("user_agent.original", agent))
	}
	if in.peer.IsValid() {
		attributes = append(attributes, attribute.String("client.address", in.peer.Addr().String()))
	}
	if revision, known := x.pool.Revision(); known {
		attributes = append(attributes, attribute.String("kn.service.name", revision.Service), attribute.String("kn.configuration.name", revision.Configuration))
	}
	return attributes
}

// method returns the method of the request as metrics and spans name it.
func (in *inbound) method() string {
	if in.head != nil {
		return pool.Method(in.head.Method)
	}
	return pool.Method(in.request.Method)
}

// granted ends the wait for a backend, if there was one.
func (s *spans) granted(grant *pool.Grant, now time.Time) {
	if s.waiting.IsZero() {
		return
	}
	began := oteltrace.WithTimestamp(s.waiting)
	s.waiting = time.Time{}
	ctx, queue := s.tracing.Start(s.ctx, queueSpan, began)
	all := []oteltrace.Span{queue}
	if grant.Cold {
		_, cold := s.tracing.Start(ctx, coldStartSpan, began)
		all = append(all, cold)
	}
	for _, span := range all {
		if grant.Outcome != pool.Granted && grant.Outcome != pool.Moved {
			span.SetStatus(codes.Error, "no backend")
		}
		span.End(oteltrace.WithTimestamp(now))
	}
}

// beginForward starts the span at a backend, or at another replica if it is nil. Further attempts belong to the same span, because the request that
// is sent names it.
func (x *exchange) beginForward(b *pool.Backend) {
	s := x.spans
	if s == nil {
		return
	}
	if s.forward == nil {
		_, s.forward = s.tracing.Start(s.ctx, forwardSpan, oteltrace.WithSpanKind(oteltrace.SpanKindClient), oteltrace.WithTimestamp(x.chain.options.Clock.Now()))
		x.setTrace(s.forward.SpanContext())
	}
	s.backend = b
}

// responded notes the first byte of the response.
func (s *spans) responded(now time.Time) {
	if s.forward != nil {
		s.forward.AddEvent("response started", oteltrace.WithTimestamp(now))
	}
}

// end ends the spans of the request with its result, and releases s.
func (s *spans) end(r *serving.Result, now time.Time) {
	if s.forward != nil {
		attributes := make([]attribute.KeyValue, 0, 3)
		if b := s.backend; b != nil {
			attributes = append(attributes, attribute.String("k8s.pod.name", b.Name()), attribute.String("server.address", b.Upstream().Address()))
		}
		finish(s.forward, attributes, r, now)
	}
	finish(s.request, s.attributes, r, now)
	clear(s.attributes)
	*s = spans{attributes: s.attributes[:0]}
	tracedRequests.Put(s)
}

// finish ends a span with its attributes and the result of the request.
func finish(span oteltrace.Span, attributes []attribute.KeyValue, r *serving.Result, now time.Time) {
	if r.Status != 0 {
		attributes = append(attributes, attribute.Int("http.response.status_code", r.Status))
	}
	span.SetAttributes(attributes...)
	switch {
	case r.Err != nil:
		span.SetStatus(codes.Error, text(r.Err.Error()))
	case r.Status >= http.StatusInternalServerError:
		span.SetStatus(codes.Error, "")
	}
	span.End(oteltrace.WithTimestamp(now))
}

// text returns bounded text from a client or backend as OTLP requires it.
func text[T string | []byte](value T) string {
	return strings.ToValidUTF8(string(value[:min(len(value), maxLogged)]), "\ufffd")
}
