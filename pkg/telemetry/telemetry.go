// Package telemetry exports traces and metrics by OTLP, as config-observability selects. An endpoint that does not answer never
// blocks the caller: what cannot be exported is dropped and counted.
package telemetry

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// serviceName is the service.name of traces and metrics, unless OTEL_SERVICE_NAME sets another one.
const serviceName = "knative-apiserver"

// flushTimeout limits the time for the last export to an endpoint that is no longer used.
const flushTimeout = 5 * time.Second

// Options configure a Telemetry.
type Options struct {
	// Default is where traces go unless config-observability selects it: the file of --tracing-config-file. The zero value exports none.
	Default settings.Tracing
	// Gatherer has the metrics to export.
	Gatherer prometheus.Gatherer
	// Register registers the metrics about exports. Nil disables them.
	Register func(...metrics.Registerable)
	// Namespace is the k8s.namespace.name of traces and metrics, Version their service.version.
	Namespace, Version string
	Logger             logr.Logger
}

// Telemetry exports traces and metrics. Its methods may be called concurrently.
type Telemetry struct {
	options     Options
	resource    *resource.Resource
	instruments *instruments
	tracing     *Tracing

	// mu guards the fields below.
	mu      sync.Mutex
	stopped bool
	applied settings.Observability
	// server and requests export metrics, or are nil.
	server, requests *metricsExport
	// retiring are the exports that end.
	retiring sync.WaitGroup
}

// New returns a Telemetry that exports nothing until Apply.
func New(ctx context.Context, options Options) *Telemetry {
	t := &Telemetry{options: options, instruments: newInstruments(options.Register)}
	t.resource = newResource(ctx, &options)
	t.tracing = newTracing(t.resource)
	return t
}

// newResource describes this process. The environment variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override it.
func newResource(ctx context.Context, o *Options) *resource.Resource {
	attributes := []attribute.KeyValue{attribute.String("service.name", serviceName)}
	optional := func(key, value string) {
		if value != "" {
			attributes = append(attributes, attribute.String(key, value))
		}
	}
	optional("service.version", o.Version)
	optional("k8s.namespace.name", o.Namespace)
	// The name of the host is the name of the Pod, if there is one.
	if host, err := os.Hostname(); err == nil {
		optional("service.instance.id", host)
		if o.Namespace != "" {
			optional("k8s.pod.name", host)
		}
	}
	r, err := resource.New(ctx, resource.WithAttributes(attributes...), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		// A part of the environment is malformed; r has the rest.
		o.Logger.Error(err, "Failed to read OTEL_RESOURCE_ATTRIBUTES")
	}
	return r
}

// Tracing returns what makes spans.
func (t *Telemetry) Tracing() *Tracing { return t.tracing }

// Apply applies settings. It does not block. Exports that the settings change or end are flushed in the background.
func (t *Telemetry) Apply(o settings.Observability) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.Tracing.Protocol == settings.ExportNone && t.options.Default.Protocol != "" {
		o.Tracing = t.options.Default
	}
	if t.stopped || o == t.applied {
		return
	}
	if o.Tracing.Protocol != t.applied.Tracing.Protocol || o.Tracing.Endpoint != t.applied.Tracing.Endpoint {
		t.retire(t.tracing.use(t.newSpans(o.Tracing)).stop)
	}
	t.tracing.sample(o.Tracing)
	if o.Metrics != t.applied.Metrics {
		t.retire(t.server.stop)
		t.server = t.newMetrics(o.Metrics, serverMetrics)
	}
	if o.RequestMetrics != t.applied.RequestMetrics {
		t.retire(t.requests.stop)
		t.requests = t.newMetrics(o.RequestMetrics, requestMetrics)
	}
	t.applied = o
}

// retire ends an export in the background by its method stop, which flushes it within the time of its context. mu is held.
func (t *Telemetry) retire(stop func(context.Context)) {
	t.retiring.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		defer cancel()
		stop(ctx)
	})
}

// Stop exports the remaining spans and metrics, and ends all exports. It takes at most flushTimeout.
func (t *Telemetry) Stop() {
	t.mu.Lock()
	t.stopped = true
	t.retire(t.tracing.use(nil).stop)
	t.retire(t.server.stop)
	t.retire(t.requests.stop)
	t.server, t.requests = nil, nil
	t.mu.Unlock()
	t.retiring.Wait()
}

// reports logs the first failure of an export and its end.
type reports struct {
	logger logr.Logger
	what   string

	mu     sync.Mutex
	failed bool
}

func (r *reports) result(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil && !r.failed:
		r.logger.Error(err, fmt.Sprintf("Failed to export %s; dropping them until the endpoint answers", r.what))
	case err == nil && r.failed:
		r.logger.Info(fmt.Sprintf("Exporting %s again", r.what))
	}
	r.failed = err != nil
}

// instruments are the metrics about exports.
type instruments struct {
	spans, exports *metrics.CounterVec
}

// The outcomes in instruments.
const (
	exported = "exported"
	failed   = "failed"
	dropped  = "dropped"
)

func newInstruments(register func(...metrics.Registerable)) *instruments {
	counter := func(name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "telemetry", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		}, labels)
	}
	i := &instruments{
		spans: counter("spans_total", "Number of recorded spans, by outcome: exported, failed (the endpoint did not accept them), dropped (too many waited).", "outcome"),
		exports: counter("metric_exports_total", "Number of exports of metrics, by the prefix of their settings (metrics, request-metrics) "+
			"and outcome (exported, failed).", "settings", "outcome"),
	}
	if register != nil {
		register(i.spans, i.exports)
	}
	return i
}
