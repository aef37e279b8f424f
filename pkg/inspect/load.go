package inspect

import (
	"strconv"
	"strings"
)

// RequestLoad is the load of a Service by requests.
type RequestLoad struct {
	// RequestsPerSecond and FailuresPerSecond (responses with a code of 500 or more, or none) are nil if rates are missing.
	RequestsPerSecond *float64 `json:"requestsPerSecond,omitempty"`
	FailuresPerSecond *float64 `json:"failuresPerSecond,omitempty"`
	// LatencyMilliseconds is the mean time until the end of a response. It is nil if rates are missing, and without responses.
	LatencyMilliseconds *float64 `json:"latencyMilliseconds,omitempty"`
}

// EventLoad is the load of a Broker or Channel, or of a Trigger or Subscription.
type EventLoad struct {
	Namespace              string  `json:"namespace"`
	Name                   string  `json:"name"`
	AcceptedPerSecond      float64 `json:"acceptedPerSecond"`
	MatchedPerSecond       float64 `json:"matchedPerSecond"`
	DeliveredPerSecond     float64 `json:"deliveredPerSecond"`
	RetriesPerSecond       float64 `json:"retriesPerSecond"`
	DeadLetteredPerSecond  float64 `json:"deadLetteredPerSecond"`
	DroppedPerSecond       float64 `json:"droppedPerSecond"`
	InFlight               float64 `json:"inFlight"`
	OldestUndeliveredInSec float64 `json:"oldestUndeliveredSeconds"`
}

// Requests returns the load of a Service.
func (i *Interval) Requests(namespace, service string) (l RequestLoad) {
	labels := selector{"namespace": namespace, "service": service}
	requests := i.rate("knative_gateway_requests_total", labels)
	failures := 0.0
	for _, code := range i.To.failureCodes() {
		failures += i.rate("knative_gateway_requests_total", selector{"namespace": namespace, "service": service, "code": code})
	}
	l.RequestsPerSecond, l.FailuresPerSecond = &requests, &failures
	if mean, ok := i.mean("knative_gateway_request_duration_seconds", labels); ok {
		mean *= 1000
		l.LatencyMilliseconds = &mean
	}
	return l
}

// failureCodes returns the status codes of failures in a sample.
func (s *Sample) failureCodes() (codes []string) {
	seen := map[string]bool{}
	for _, m := range s.families["knative_gateway_requests_total"].GetMetric() {
		for _, label := range m.GetLabel() {
			code, err := strconv.Atoi(label.GetValue())
			if label.GetName() != "code" || err != nil || seen[label.GetValue()] || (code != 0 && code < 500) {
				continue
			}
			seen[label.GetValue()] = true
			codes = append(codes, label.GetValue())
		}
	}
	return codes
}

// Events returns the load of a Broker, Channel, Trigger or Subscription.
func (i *Interval) Events(kind, namespace, name string) EventLoad {
	labels := selector{"kind": kind, "namespace": namespace, "name": name}
	load := EventLoad{Namespace: namespace, Name: name}
	for metric, value := range map[string]*float64{
		"events_accepted_total": &load.AcceptedPerSecond, "events_matched_total": &load.MatchedPerSecond,
		"events_delivered_total": &load.DeliveredPerSecond, "delivery_retries_total": &load.RetriesPerSecond,
		"events_dead_lettered_total": &load.DeadLetteredPerSecond, "events_dropped_total": &load.DroppedPerSecond,
	} {
		*value = i.rate("knative_eventing_"+metric, labels)
	}
	load.InFlight, _ = i.To.sum("knative_eventing_deliveries_in_flight", labels)
	load.OldestUndeliveredInSec, _ = i.To.sum("knative_eventing_oldest_undelivered_event_seconds", labels)
	return load
}

// String returns the values that are not 0, such as "5 delivered/s, 2 in flight".
func (l EventLoad) String() string {
	var parts []string
	for _, part := range []struct {
		value float64
		unit  string
	}{
		{l.AcceptedPerSecond, " accepted/s"}, {l.DeliveredPerSecond, " delivered/s"}, {l.RetriesPerSecond, " retries/s"},
		{l.DeadLetteredPerSecond, " dead letters/s"}, {l.DroppedPerSecond, " dropped/s"}, {l.InFlight, " in flight"},
	} {
		if part.value > 0 {
			parts = append(parts, Number(part.value)+part.unit)
		}
	}
	if len(parts) == 0 {
		return "no events"
	}
	return strings.Join(parts, ", ")
}

// Number returns a number with at most one decimal place.
func Number(v float64) string {
	return strconv.FormatFloat(float64(int64(v*10+0.5))/10, 'f', -1, 64)
}
