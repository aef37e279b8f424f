package telemetry

import (
	"context"
	"sync/atomic"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const (
	// maxSpans is the number of spans that wait for their export or are being exported. Further spans are dropped.
	maxSpans = 4096
	// spanBatch is the number of spans in one request.
	spanBatch = 512
)

// spans exports ended spans in batches. It implements sdktrace.SpanExporter for its batches.
type spans struct {
	batches sdktrace.SpanProcessor
	to      sdktrace.SpanExporter
	reports reports
	// held is the number of spans that wait or are being exported.
	held atomic.Int64
	// stopped is true once nothing is exported anymore.
	stopped                   atomic.Bool
	exported, failed, dropped metrics.CounterMetric
}

// newSpans returns an export, or nil for none.
func (t *Telemetry) newSpans(o settings.Tracing) *spans {
	to, err := newSpanExporter(o)
	if err != nil {
		t.options.Logger.Error(err, "Failed to export traces")
		return nil
	}
	if to == nil {
		return nil
	}
	s := &spans{
		to: to, reports: reports{logger: t.options.Logger, what: "traces"},
		exported: t.instruments.spans.WithLabelValues(exported), failed: t.instruments.spans.WithLabelValues(failed), dropped: t.instruments.spans.WithLabelValues(dropped),
	}
	s.batches = sdktrace.NewBatchSpanProcessor(s, sdktrace.WithMaxQueueSize(maxSpans), sdktrace.WithMaxExportBatchSize(spanBatch), sdktrace.WithExportTimeout(exportTimeout))
	return s
}

// add exports a span later, or drops it. It does not block.
func (s *spans) add(span sdktrace.ReadOnlySpan) {
	if s.held.Add(1) > maxSpans || s.stopped.Load() {
		s.held.Add(-1)
		s.dropped.Inc()
		return
	}
	s.batches.OnEnd(span)
}

// ExportSpans implements sdktrace.SpanExporter. Failures are counted and logged here.
func (s *spans) ExportSpans(ctx context.Context, all []sdktrace.ReadOnlySpan) error {
	defer s.held.Add(-int64(len(all)))
	if s.stopped.Load() {
		s.failed.Add(float64(len(all)))
		return nil
	}
	err := s.to.ExportSpans(ctx, all)
	s.reports.result(err)
	if err != nil {
		s.failed.Add(float64(len(all)))
	} else {
		s.exported.Add(float64(len(all)))
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (s *spans) Shutdown(ctx context.Context) error { return s.to.Shutdown(ctx) }

// stop exports the spans that wait, as far as the endpoint accepts them until ctx is canceled. It does nothing for nil.
func (s *spans) stop(ctx context.Context) {
	if s == nil {
		return
	}
	defer s.stopped.Store(true)
	if err := s.batches.Shutdown(ctx); err != nil {
		s.reports.result(err)
	}
}
