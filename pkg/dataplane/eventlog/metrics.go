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
