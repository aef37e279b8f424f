package telemetry

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// instrumentation is the name of the tracer of requests.
const instrumentation = "github.com/knative-apiserver/knative-apiserver/pkg/telemetry"

// The limits of a span. Clients choose some of its values.
const (
	maxAttributes  = 64
	maxValueLength = 1024
	maxSpanEvents  = 32
)

// Tracing makes spans while traces are exported. Its methods may be called concurrently.
type Tracing struct {
	// threshold is the number of 2^63 new traces that is sampled.
	threshold atomic.Uint64
	// to exports the spans. Nil exports none.
	to atomic.Pointer[spans]
	// provider samples, sampled records all spans.
	provider *sdktrace.TracerProvider
	sampled  trace.Tracer
}

func newTracing(r *resource.Resource) *Tracing {
	t := &Tracing{}
	limits := sdktrace.NewSpanLimits()
	limits.AttributeCountLimit, limits.AttributeValueLengthLimit, limits.EventCountLimit, limits.LinkCountLimit = maxAttributes, maxValueLength, maxSpanEvents, 1
	provider := func(sampler sdktrace.Sampler) *sdktrace.TracerProvider {
		return sdktrace.NewTracerProvider(
			sdktrace.WithResource(r), sdktrace.WithSpanProcessor(processor{t}), sdktrace.WithSampler(sampler), sdktrace.WithRawSpanLimits(limits),
		)
	}
	t.provider, t.sampled = provider(sampler{t}), provider(sdktrace.AlwaysSample()).Tracer(instrumentation)
	return t
}

// use sets what exports spans, and returns what did before.
func (t *Tracing) use(to *spans) *spans { return t.to.Swap(to) }

// sample sets the fraction of new traces that is sampled.
func (t *Tracing) sample(o settings.Tracing) {
	rate := o.SamplingRate
	if o.Protocol == settings.ExportStdout {
		rate = 1
	}
	t.threshold.Store(uint64(rate * (1 << 63)))
}

// Enabled reports whether spans are exported. It is false for a nil Tracing.
func (t *Tracing) Enabled() bool { return t != nil && t.to.Load() != nil }

// Provider returns a TracerProvider that samples a span like its parent, and a new trace at the configured rate.
func (t *Tracing) Provider() trace.TracerProvider { return t.provider }

// Sample decides whether a new trace is sampled, without allocating.
func (t *Tracing) Sample() bool { return t.samples(rand.Uint64()) }

// samples decides by random bits. It decides like other implementations do by the second half of a trace ID.
func (t *Tracing) samples(random uint64) bool { return random>>1 < t.threshold.Load() }

// Start starts a span that is sampled.
func (t *Tracing) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	return t.sampled.Start(ctx, name, options...)
}

// sampler samples by the parent, or by the rate.
type sampler struct{ *Tracing }

// ShouldSample implements sdktrace.Sampler.
func (s sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	parent := trace.SpanContextFromContext(p.ParentContext)
	result := sdktrace.SamplingResult{Decision: sdktrace.Drop, Tracestate: parent.TraceState()}
	if !s.Enabled() {
		return result
	}
	if parent.IsValid() && parent.IsSampled() || !parent.IsValid() && s.samples(binary.BigEndian.Uint64(p.TraceID[8:])) {
		result.Decision = sdktrace.RecordAndSample
	}
	return result
}

// Description implements sdktrace.Sampler.
func (sampler) Description() string { return "config-observability" }

// processor passes ended spans to the current export.
type processor struct{ *Tracing }

// OnStart implements sdktrace.SpanProcessor.
func (processor) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (p processor) OnEnd(s sdktrace.ReadOnlySpan) {
	if to := p.to.Load(); to != nil {
		to.add(s)
	}
}

// Shutdown implements sdktrace.SpanProcessor.
func (processor) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (processor) ForceFlush(context.Context) error { return nil }
