package telemetry

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// maxPoints is the number of data points in one request: collectors reject large ones.
const maxPoints = 2000

// scope selects metrics. Its value is the prefix of the settings.
type scope string

const (
	// requestMetrics are the metrics of requests to Revisions, which Knative measures in the Pods of the Revision.
	requestMetrics scope = "request-metrics"
	// serverMetrics are all others.
	serverMetrics scope = "metrics"
)

// has reports whether a metric belongs to the scope.
func (s scope) has(name string) bool {
	request := false
	for _, prefix := range [...]string{"knative_gateway_", "kn_serving_", "http_server_"} {
		request = request || strings.HasPrefix(name, prefix)
	}
	return request == (s == requestMetrics)
}

// metricsExport exports metrics periodically.
type metricsExport struct {
	scope            scope
	from             metric.Producer
	to               metric.Exporter
	resource         *resource.Resource
	interval         time.Duration
	reports          reports
	exported, failed metrics.CounterMetric
	// cancel ends run, which closes ended.
	cancel context.CancelFunc
	ended  chan struct{}
}

// newMetrics starts an export, or returns nil for none.
func (t *Telemetry) newMetrics(o settings.MetricsExport, scope scope) *metricsExport {
	to, err := newMetricExporter(o)
	if err != nil {
		t.options.Logger.Error(err, "Failed to export metrics")
		return nil
	}
	if to == nil {
		return nil
	}
	m := &metricsExport{
		scope: scope, from: prometheus.NewMetricProducer(prometheus.WithGatherer(t.options.Gatherer)), to: to, resource: t.resource, interval: o.Interval,
		reports:  reports{logger: t.options.Logger, what: string(scope)},
		exported: t.instruments.exports.WithLabelValues(string(scope), exported), failed: t.instruments.exports.WithLabelValues(string(scope), failed),
		ended: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go m.run(ctx)
	return m
}

// run exports until ctx is canceled.
func (m *metricsExport) run(ctx context.Context) {
	defer close(m.ended)
	ticker := time.NewTicker(m.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			m.export(ctx)
		}
	}
}

// stop exports once more, within the time of ctx, and ends. It does nothing for nil.
func (m *metricsExport) stop(ctx context.Context) {
	if m == nil {
		return
	}
	m.cancel()
	select {
	case <-m.ended:
		m.export(ctx)
	case <-ctx.Done():
	}
	if err := m.to.Shutdown(ctx); err != nil {
		m.reports.result(err)
	}
}

// export exports the current values. It counts and logs failures.
func (m *metricsExport) export(ctx context.Context) {
	all, err := m.from.Produce(ctx)
	for _, s := range all {
		for _, batch := range batches(m.selected(s.Metrics), maxPoints) {
			if err == nil {
				err = m.send(ctx, metricdata.ScopeMetrics{Scope: s.Scope, Metrics: batch})
			}
		}
	}
	m.reports.result(err)
	if err != nil {
		m.failed.Inc()
	} else {
		m.exported.Inc()
	}
}

func (m *metricsExport) send(ctx context.Context, s metricdata.ScopeMetrics) error {
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	return m.to.Export(ctx, &metricdata.ResourceMetrics{Resource: m.resource, ScopeMetrics: []metricdata.ScopeMetrics{s}})
}

// selected returns the metrics of the scope, Knative's ones by their original names.
func (m *metricsExport) selected(all []metricdata.Metrics) (selected []metricdata.Metrics) {
	for _, one := range all {
		if m.scope.has(one.Name) {
			selected = append(selected, original(one))
		}
	}
	return selected
}

// batches divides metrics into batches of at most limit data points. The points of a metric may be divided too.
func batches(all []metricdata.Metrics, limit int) (batches [][]metricdata.Metrics) {
	var batch []metricdata.Metrics
	left := limit
	for _, m := range all {
		for rest := m; rest.Data != nil; {
			if left == 0 {
				batches, batch, left = append(batches, batch), nil, limit
			}
			var first metricdata.Metrics
			first, rest = rest, metricdata.Metrics{Name: m.Name, Description: m.Description, Unit: m.Unit}
			n := 0
			first.Data, rest.Data, n = divide(first.Data, left)
			batch, left = append(batch, first), left-n
		}
	}
	if len(batch) > 0 {
		batches = append(batches, batch)
	}
	return batches
}

// divide returns the first n data points, the rest or nil, and the number of the first ones.
func divide(data metricdata.Aggregation, n int) (first, rest metricdata.Aggregation, count int) {
	switch d := data.(type) {
	case metricdata.Gauge[float64]:
		a, b := cut(d.DataPoints, n)
		first, count = metricdata.Gauge[float64]{DataPoints: a}, len(a)
		if len(b) > 0 {
			rest = metricdata.Gauge[float64]{DataPoints: b}
		}
	case metricdata.Sum[float64]:
		a, b := cut(d.DataPoints, n)
		first, count = metricdata.Sum[float64]{DataPoints: a, Temporality: d.Temporality, IsMonotonic: d.IsMonotonic}, len(a)
		if len(b) > 0 {
			rest = metricdata.Sum[float64]{DataPoints: b, Temporality: d.Temporality, IsMonotonic: d.IsMonotonic}
		}
	case metricdata.Histogram[float64]:
		a, b := cut(d.DataPoints, n)
		first, count = metricdata.Histogram[float64]{DataPoints: a, Temporality: d.Temporality}, len(a)
		if len(b) > 0 {
			rest = metricdata.Histogram[float64]{DataPoints: b, Temporality: d.Temporality}
		}
	default:
		// Summaries and exponential histograms of the Go runtime are few.
		first, count = data, n
	}
	return first, rest, count
}

func cut[T any](points []T, n int) (first, rest []T) {
	n = min(n, len(points))
	return points[:n:n], points[n:]
}
