package broker

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/telemetry/histogram"
)

// descriptions describe the metrics. All have the labels kind, namespace and name of their object. Counters are removed with it, gauges
// also when another replica becomes its owner.
type descriptions struct {
	accepted, matched, redelivered, unfiltered, looped          *metrics.Desc
	delivered, retried, deadLettered, dropped, inFlight, oldest *metrics.Desc
	// dispatched is Knative's metric of attempts. dispatches is the same for histograms.
	dispatched *metrics.Desc
	dispatches *prometheus.Desc
}

// Knative's metric of attempts. Its type of event is left out, because senders choose it.
const (
	dispatchName = "kn_eventing_dispatch_duration_seconds"
	dispatchHelp = "The duration of attempts to deliver an event, in seconds."
)

func dispatchLabels() []string {
	return []string{
		"kn_broker_namespace", "kn_broker_name", "kn_channel_namespace", "kn_channel_name", "messaging_system", "messaging_operation_name",
		"messaging_destination_name", "http_response_status_code",
	}
}

func describe() descriptions {
	desc := func(name, help string) *metrics.Desc {
		return metrics.NewDesc(metrics.BuildFQName("knative", "eventing", name), help, []string{"kind", "namespace", "name"}, nil, metrics.ALPHA, "")
	}
	return descriptions{
		accepted:     desc("events_accepted_total", "Number of accepted events, including replies."),
		matched:      desc("events_matched_total", "Number of deliveries of accepted and redelivered events."),
		redelivered:  desc("events_redelivered_total", "Number of stored events, such as dead letters, that were queued for delivery again."),
		unfiltered:   desc("events_unfiltered_total", "Number of events that were not delivered because the evaluation of the filters exceeded its budget."),
		looped:       desc("events_looped_total", "Number of events that were rejected because they passed too many Brokers."),
		delivered:    desc("events_delivered_total", "Number of events that the subscriber accepted."),
		retried:      desc("delivery_retries_total", "Number of failed delivery attempts that are retried."),
		deadLettered: desc("events_dead_lettered_total", "Number of events that the dead letter sink or the dead letter store accepted."),
		dropped:      desc("events_dropped_total", "Number of events that neither the subscriber nor a dead letter sink nor the dead letter store accepted."),
		inFlight:     desc("deliveries_in_flight", "Number of delivery attempts in flight."),
		oldest:       desc("oldest_undelivered_event_seconds", "Age of the oldest undelivered event in seconds, 0 without one."),

		dispatched: metrics.NewDesc(dispatchName, dispatchHelp, dispatchLabels(), nil, metrics.ALPHA, ""),
		dispatches: prometheus.NewDesc(dispatchName, "[ALPHA] "+dispatchHelp, dispatchLabels(), nil),
	}
}

// collector reports the metrics of a Broker.
type collector struct {
	metrics.BaseStableCollector

	broker       *Broker
	descriptions descriptions
}

// DescribeWithStability implements metrics.StableCollector.
func (m *collector) DescribeWithStability(to chan<- *metrics.Desc) {
	d := &m.descriptions
	for _, desc := range []*metrics.Desc{d.accepted, d.matched, d.redelivered, d.unfiltered, d.looped, d.delivered, d.retried, d.deadLettered, d.dropped, d.inFlight, d.oldest, d.dispatched} {
		to <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (m *collector) CollectWithStability(to chan<- metrics.Metric) {
	b, d := m.broker, &m.descriptions
	now := b.options.Clock.Now()
	b.consumerCounts.each(func(key eventing.Key, n *consumerCounts) {
		counter := counterOf(to, key)
		counter(d.matched, n.matched.Load())
		counter(d.redelivered, n.redelivered.Load())
		counter(d.unfiltered, n.unfiltered.Load())
		counter(d.delivered, n.delivered.Load())
		counter(d.retried, n.retried.Load())
		counter(d.deadLettered, n.deadLettered.Load())
		counter(d.dropped, n.dropped.Load())
		counter(d.looped, n.looped.Load())
		d.dispatch(to, key, n)
	})
	b.streamCounts.each(func(key eventing.Key, n *streamCounts) {
		counter := counterOf(to, key)
		counter(d.accepted, n.accepted.Load())
		counter(d.matched, n.matched.Load())
		counter(d.looped, n.looped.Load())
	})
	// The partitions of a stream are counted together.
	lags, inFlights := map[eventing.Key]time.Duration{}, map[eventing.Key]int{}
	b.streams.Range(func(key, _ any) bool {
		lags[key.(eventing.Key).Whole()] = 0
		return true
	})
	b.consumers.Range(func(key, found any) bool {
		c, consumer := found.(*consumer), key.(eventing.Key).Whole()
		lag, inFlight := c.lag(now)
		for _, of := range []eventing.Key{consumer, c.stream.spec.Key.Whole()} {
			lags[of] = max(lags[of], lag)
		}
		inFlights[consumer] += inFlight
		return true
	})
	for key, lag := range lags {
		gaugeOf(to, key)(d.oldest, lag.Seconds())
	}
	for key, inFlight := range inFlights {
		gaugeOf(to, key)(d.inFlight, float64(inFlight))
	}
}

// dispatch sends the durations of attempts for a consumer.
func (d *descriptions) dispatch(to chan<- metrics.Metric, key eventing.Key, n *consumerCounts) {
	labels := []string{"", "", "", "", "knative", "send", key.Label()}
	if stream := n.stream.Load(); stream != nil && stream.Kind == eventing.Broker {
		labels[0], labels[1] = stream.Namespace, stream.Name
	} else if stream != nil {
		labels[2], labels[3] = stream.Namespace, stream.Name
	}
	n.dispatched.Each(func(code int, took *histogram.Histogram) {
		text := ""
		if code != 0 {
			text = strconv.Itoa(code)
		}
		var sum histogram.Sum
		sum.Add(took)
		to <- sum.Metric(d.dispatches, histogram.Knative(), append(labels[:7:7], text)...)
	})
}

func counterOf(to chan<- metrics.Metric, key eventing.Key) func(*metrics.Desc, int64) {
	return func(desc *metrics.Desc, value int64) {
		to <- metrics.NewLazyConstMetric(desc, metrics.CounterValue, float64(value), string(key.Kind), key.Namespace, key.Name)
	}
}

func gaugeOf(to chan<- metrics.Metric, key eventing.Key) func(*metrics.Desc, float64) {
	return func(desc *metrics.Desc, value float64) {
		to <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, string(key.Kind), key.Namespace, key.Name)
	}
}
