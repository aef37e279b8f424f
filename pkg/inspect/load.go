package inspect

import (
	"cmp"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
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

// Requests returns the load of a Service, which is empty without metrics of Services.
func (i *Interval) Requests(namespace, service string) (l RequestLoad) {
	if i.From.services == nil || i.To.services == nil {
		return l
	}
	key := types.NamespacedName{Namespace: namespace, Name: service}
	before, after := cmp.Or(i.From.services[key], &servingv1beta1.ServiceMetrics{}), cmp.Or(i.To.services[key], &servingv1beta1.ServiceMetrics{})
	increased := func(value func(*servingv1beta1.ServiceMetricsReplica) int64) int64 {
		return increaseOf(before.Replicas, after.Replicas, before.Timestamp.Time, func(r *servingv1beta1.ServiceMetricsReplica) (string, metav1.MicroTime, int64) {
			return r.Name, r.StartTime, value(r)
		})
	}
	requests := i.perSecond(increased(func(r *servingv1beta1.ServiceMetricsReplica) int64 { return r.Requests }))
	failures := i.perSecond(increased(func(r *servingv1beta1.ServiceMetricsReplica) int64 { return r.Failures }))
	l.RequestsPerSecond, l.FailuresPerSecond = &requests, &failures
	if responses := increased(func(r *servingv1beta1.ServiceMetricsReplica) int64 { return r.Responses }); responses > 0 {
		mean := float64(increased(func(r *servingv1beta1.ServiceMetricsReplica) int64 { return r.DurationMilliseconds })) / float64(responses)
		l.LatencyMilliseconds = &mean
	}
	return l
}

// Events returns the load of a Broker, Channel, Trigger or Subscription.
func (i *Interval) Events(kind, namespace, name string) EventLoad {
	key := eventsKey{kind, namespace, name}
	before, after := cmp.Or(i.From.events[key], &eventingv1alpha1.EventMetrics{}), cmp.Or(i.To.events[key], &eventingv1alpha1.EventMetrics{})
	load := EventLoad{Namespace: namespace, Name: name}
	type replica = eventingv1alpha1.EventMetricsReplica
	for rate, value := range map[*float64]func(*replica) int64{
		&load.AcceptedPerSecond:     func(r *replica) int64 { return r.Accepted },
		&load.MatchedPerSecond:      func(r *replica) int64 { return r.Matched },
		&load.DeliveredPerSecond:    func(r *replica) int64 { return r.Delivered },
		&load.RetriesPerSecond:      func(r *replica) int64 { return r.Retries },
		&load.DeadLetteredPerSecond: func(r *replica) int64 { return r.DeadLettered },
		&load.DroppedPerSecond:      func(r *replica) int64 { return r.Dropped },
	} {
		*rate = i.perSecond(increaseOf(before.Replicas, after.Replicas, before.Timestamp.Time, func(r *replica) (string, metav1.MicroTime, int64) {
			return r.Name, r.StartTime, value(r)
		}))
	}
	total := after.Total()
	load.InFlight, load.OldestUndeliveredInSec = float64(total.InFlight), float64(total.OldestUndeliveredMilliseconds)/1000
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
