package gateway

import (
	"net/http"
	"strconv"

	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// recorder records requests that are rejected before their admission, in metrics and the access log. Package pool has the
// metrics of Revisions.
type recorder struct {
	clock        clock.PassiveClock
	unknownHosts metrics.CounterMetric
	others       *metrics.CounterVec
	// interruptions counts the lapses of the standing of this replica.
	interruptions metrics.CounterMetric
	// http3Connections counts the open connections of HTTP/3, refusedHTTP3 connections that were refused.
	http3Connections metrics.GaugeMetric
	refusedHTTP3     metrics.CounterMetric
	// log is nil without an access log.
	log *accessLog
}

func newRecorder(options *Options) *recorder {
	counter := func(name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "gateway", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		}, labels)
	}
	unknownHosts := counter("unknown_host_requests_total", "Number of requests for host names without a Route.")
	others := counter("refused_requests_total", "Number of requests rejected before they reached a Revision, by status code.", "code")
	dropped := counter("access_log_lines_dropped_total", "Number of lines of the access log that were dropped because it was written too slowly.")
	interruptions := counter("interruptions_total", "Number of times that the gateway interrupted requests to Revisions with containerConcurrency, "+
		"because neither the host nor the other replicas confirmed its membership.")
	refusedHTTP3 := counter("http3_refused_connections_total", "Number of connections of HTTP/3 that were refused because of their number or memory.")
	http3Connections := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "knative", Subsystem: "gateway", Name: "http3_connections", Help: "Number of open connections of HTTP/3.", StabilityLevel: metrics.ALPHA,
	}, nil)
	if options.Register != nil {
		options.Register(unknownHosts, others, dropped, interruptions, refusedHTTP3, http3Connections)
	}
	r := &recorder{clock: options.Clock, unknownHosts: unknownHosts.WithLabelValues(), others: others, interruptions: interruptions.WithLabelValues()}
	r.refusedHTTP3, r.http3Connections = refusedHTTP3.WithLabelValues(), http3Connections.WithLabelValues()
	if options.AccessLog != nil {
		r.log = newAccessLog(options.AccessLog, dropped.WithLabelValues().Inc)
	}
	return r
}

// rejected records a request that no Revision gets.
func (c *recorder) rejected(in inbound, r *serving.Rejection) {
	if r.Status == http.StatusNotFound {
		c.unknownHosts.Inc()
	} else {
		c.others.WithLabelValues(strconv.Itoa(r.Status)).Inc()
	}
	if c.log != nil {
		c.log.write(&entry{time: c.clock.Now(), peer: in.peer, status: r.Status, head: in.head, request: in.request})
	}
}
