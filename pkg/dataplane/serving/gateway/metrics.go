package gateway

import (
	"k8s.io/component-base/metrics"
)

// instruments are the metrics of requests that are rejected before their admission, and of the access log. Package pool has the
// metrics of Revisions.
type instruments struct {
	unknownHosts, rejected, logLinesDropped *metrics.CounterVec
}

func newInstruments(register func(...metrics.Registerable)) *instruments {
	counter := func(name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "gateway", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		}, labels)
	}
	i := &instruments{
		unknownHosts:    counter("unknown_host_requests_total", "Number of requests for host names without a Route."),
		rejected:        counter("refused_requests_total", "Number of requests rejected before they reached a Revision, by status code.", "code"),
		logLinesDropped: counter("access_log_lines_dropped_total", "Number of lines of the access log that were dropped because it was written too slowly."),
	}
	if register != nil {
		register(i.unknownHosts, i.rejected, i.logLinesDropped)
	}
	return i
}
