package eventlog

import "k8s.io/component-base/metrics"

// instruments are the log's metrics.
type instruments struct {
	records, frames, commits, failures, restarts *metrics.Counter
}

func newInstruments(register func(...metrics.Registerable)) *instruments {
	counter := func(name, help string) *metrics.Counter {
		return metrics.NewCounter(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "eventlog", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		})
	}
	i := &instruments{
		records:  counter("records_total", "Records made durable."),
		frames:   counter("frames_total", "Messages that the records were written as."),
		commits:  counter("commits_total", "Groups of appends that were written together."),
		failures: counter("commit_failures_total", "Groups of appends that could not be written."),
		restarts: counter("restarts_total", "Restarts of the embedded server after it failed."),
	}
	if register != nil {
		register(i.records, i.frames, i.commits, i.failures, i.restarts)
	}
	return i
}
