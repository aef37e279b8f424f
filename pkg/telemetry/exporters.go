package telemetry

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// exportTimeout limits one request to a collector. Failed requests are repeated after firstRetry, with growing delays, until retryFor.
const (
	exportTimeout = 10 * time.Second
	firstRetry    = 500 * time.Millisecond
	retryFor      = 10 * time.Second
)

// The paths of OTLP/HTTP for endpoints without one.
const tracesPath, metricsPath = "/v1/traces", "/v1/metrics"

// withPath returns an endpoint with a path.
func withPath(endpoint, path string) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Path != "" && u.Path != "/" {
		return endpoint
	}
	u.Path = path
	return u.String()
}

// newSpanExporter returns the exporter of spans, or nil for none. It does not connect yet. The environment variables OTEL_EXPORTER_OTLP_*
// set headers and certificates.
func newSpanExporter(o settings.Tracing) (e sdktrace.SpanExporter, err error) {
	ctx := context.Background()
	switch o.Protocol {
	case settings.ExportGRPC:
		to := []otlptracegrpc.Option{otlptracegrpc.WithEndpointURL(o.Endpoint)}
		if u, err := url.Parse(o.Endpoint); err != nil || u.Scheme != "http" && u.Scheme != "https" {
			// --tracing-config-file has an address without scheme.
			to = []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(o.Endpoint), otlptracegrpc.WithInsecure()}
		}
		e, err = otlptracegrpc.New(ctx, append(to, otlptracegrpc.WithTimeout(exportTimeout),
			otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: true, InitialInterval: firstRetry, MaxInterval: retryFor, MaxElapsedTime: retryFor}))...)
	case settings.ExportHTTP:
		e, err = otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(withPath(o.Endpoint, tracesPath)), otlptracehttp.WithTimeout(exportTimeout),
			otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: firstRetry, MaxInterval: retryFor, MaxElapsedTime: retryFor}))
	case settings.ExportStdout:
		e, err = stdouttrace.New()
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("create exporter of traces by %s: %w", o.Protocol, err)
	}
	return e, nil
}

// newMetricExporter returns the exporter of metrics, or nil for none. It does not connect yet.
func newMetricExporter(o settings.MetricsExport) (e metric.Exporter, err error) {
	ctx := context.Background()
	switch o.Protocol {
	case settings.ExportGRPC:
		e, err = otlpmetricgrpc.New(ctx, otlpmetricgrpc.WithEndpointURL(o.Endpoint), otlpmetricgrpc.WithTimeout(exportTimeout),
			otlpmetricgrpc.WithRetry(otlpmetricgrpc.RetryConfig{Enabled: true, InitialInterval: firstRetry, MaxInterval: retryFor, MaxElapsedTime: retryFor}))
	case settings.ExportHTTP:
		e, err = otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(withPath(o.Endpoint, metricsPath)), otlpmetrichttp.WithTimeout(exportTimeout),
			otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{Enabled: true, InitialInterval: firstRetry, MaxInterval: retryFor, MaxElapsedTime: retryFor}))
	default:
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("create exporter of metrics by %s: %w", o.Protocol, err)
	}
	return e, nil
}
