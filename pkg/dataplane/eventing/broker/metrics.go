package broker

import (
	"time"

	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// descriptions describe the metrics. All have the labels kind, namespace and name of their object. Counters are removed with it, gauges
// also when another replica becomes its owner.
type descriptions struct {
	accepted, matched, unfiltered, looped                       *metrics.Desc
	delivered, retried, deadLettered, dropped, inFlight, oldest *metrics.Desc
}

func describe() descriptions {
	desc := func(name, help string) *metrics.Desc {
		return metrics.NewDesc(metrics.BuildFQName("knative", "eventing", name), help, []string{"kind", "namespace", "name"}, nil, metrics.ALPHA, "")
	}
	return descriptions{
		accepted:     desc("events_accepted_total", "Number of accepted events, including replies."),
		matched:      desc("events_matched_total", "Number of deliveries of accepted events."),
		unfiltered:   desc("events_unfiltered_total", "Number of events that were not delivered because the evaluation of the filters exceeded its budget."),
		looped:       desc("events_looped_total", "Number of events that were rejected because they passed too many Brokers."),
		delivered:    desc("events_delivered_total", "Number of events that the subscriber accepted."),
		retried:      desc("delivery_retries_total", "Number of failed delivery attempts that are retried."),
		deadLettered: desc("events_dead_lettered_total", "Number of events that the dead letter sink accepted."),
		dropped:      desc("events_dropped_total", "Number of events that neither the subscriber nor a dead letter sink accepted."),
		inFlight:     desc("deliveries_in_flight", "Number of delivery attempts in flight."),
		oldest:       desc("oldest_undelivered_event_seconds", "Age of the oldest undelivered event in seconds, 0 without one."),
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
	for _, desc := range []*metrics.Desc{d.accepted, d.matched, d.unfiltered, d.looped, d.delivered, d.retried, d.deadLettered, d.dropped, d.inFlight, d.oldest} {
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
		counter(d.unfiltered, n.unfiltered.Load())
		counter(d.delivered, n.delivered.Load())
		counter(d.retried, n.retried.Load())
		counter(d.deadLettered, n.deadLettered.Load())
		counter(d.dropped, n.dropped.Load())
		counter(d.looped, n.looped.Load())
	})
	b.streamCounts.each(func(key eventing.Key, n *streamCounts) {
		counter := counterOf(to, key)
		counter(d.accepted, n.accepted.Load())
		counter(d.matched, n.matched.Load())
		counter(d.looped, n.looped.Load())
	})
	lags := map[*stream]time.Duration{}
	b.consumers.Range(func(key, found any) bool {
		c := found.(*consumer)
		lag, inFlight := c.lag(now)
		lags[c.stream] = max(lags[c.stream], lag)
		gauge := gaugeOf(to, key.(eventing.Key))
		gauge(d.inFlight, float64(inFlight))
		gauge(d.oldest, lag.Seconds())
		return true
	})
	b.streams.Range(func(key, found any) bool {
		gaugeOf(to, key.(eventing.Key))(d.oldest, lags[found.(*stream)].Seconds())
		return true
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
