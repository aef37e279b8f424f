package eventlog

import (
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/commit"
)

// instruments are the log's metrics.
type instruments struct {
	commit   commit.Metrics
	restarts *metrics.Counter
}

func newInstruments(register func(...metrics.Registerable)) *instruments {
	var all []metrics.Registerable
	counter := func(name, help string) *metrics.Counter {
		c := metrics.NewCounter(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "eventlog", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		})
		all = append(all, c)
		return c
	}
	i := &instruments{
		commit: commit.Metrics{
			Records:  counter("records_total", "Records made durable."),
			Segments: counter("frames_total", "Segments, the messages that records are written in."),
			Commits:  counter("commits_total", "Batches of concurrent appends that were written."),
			Failures: counter("commit_failures_total", "Batches of concurrent appends that could not be written."),
		},
		restarts: counter("restarts_total", "Restarts of the embedded server after a failure."),
	}
	if register != nil {
		register(all...)
	}
	return i
}

// usage reports how full the embedded store is.
type usage struct {
	metrics.BaseStableCollector

	log         *Log
	used, limit *metrics.Desc
}

// Metrics returns the bytes of events that the embedded store holds on disk, and their limit. All servers of a cluster report the same.
// The held bytes are 0 while the embedded server is down. An external store has metrics of its own.
func (l *Log) Metrics() metrics.StableCollector {
	desc := func(name, help string) *metrics.Desc {
		return metrics.NewDesc(metrics.BuildFQName("knative", "eventlog", name), help, nil, nil, metrics.ALPHA, "")
	}
	return &usage{
		log:   l,
		used:  desc("used_bytes", "Size of all undelivered events on disk in bytes, one copy of each."),
		limit: desc("limit_bytes", "Size of all undelivered events on disk at which new ones are rejected, in bytes: --event-log-max-size, or the size of the filesystem."),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (u *usage) DescribeWithStability(to chan<- *metrics.Desc) {
	to <- u.used
	to <- u.limit
}

// CollectWithStability implements metrics.StableCollector.
func (u *usage) CollectWithStability(to chan<- metrics.Metric) {
	if u.log.space == nil {
		return
	}
	limit := u.log.opts.MaxBytes
	if limit == 0 {
		limit = u.log.space.Size()
	}
	_, used := u.log.server.Usage()
	// Dead letters and archives have limits of their own.
	used = max(used-u.log.retainedBytes.Load(), 0)
	to <- metrics.NewLazyConstMetric(u.used, metrics.GaugeValue, float64(used))
	to <- metrics.NewLazyConstMetric(u.limit, metrics.GaugeValue, float64(limit))
}
