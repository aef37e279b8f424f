package autoscaler

import (
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// descriptions describe the metrics of a Loop, with the labels namespace, service, configuration and revision. Revisions at
// zero only report the numbers of backends and of changes.
type descriptions struct {
	desired, ready, panicking, excessBurst                 *metrics.Desc
	stableConcurrency, panicConcurrency, targetConcurrency *metrics.Desc
	stableRPS, panicRPS, targetRPS                         *metrics.Desc
	changes                                                *metrics.Desc
	knative                                                knativeDescriptions
}

// knativeDescriptions describe the metrics that have the same meaning in Knative, by the names there.
type knativeDescriptions struct {
	desired, ready, panicking, excess, stableConcurrency, panicConcurrency, targetConcurrency, stableRPS, panicRPS, targetRPS *metrics.Desc
}

func describeKnative() knativeDescriptions {
	desc := func(name, help string) *metrics.Desc {
		labels := []string{"k8s_namespace_name", "kn_service_name", "kn_configuration_name", "kn_revision_name"}
		return metrics.NewDesc("kn_revision_"+name, help, labels, nil, metrics.ALPHA, "")
	}
	return knativeDescriptions{
		desired:   desc("pods_desired", "Desired number of instances of the revision."),
		ready:     desc("pods_count", "Number of ready instances of the revision."),
		excess:    desc("capacity_excess", "Capacity of the ready instances minus requests in flight and target burst capacity, in requests."),
		panicking: desc("panic_mode", "1 if the revision scales on its panic window, otherwise 0."),

		stableConcurrency: desc("concurrency_stable", "Average number of requests in flight over the stable window."),
		panicConcurrency:  desc("concurrency_panic", "Average number of requests in flight over the panic window."),
		targetConcurrency: desc("concurrency_target", "Target number of requests in flight per instance."),

		stableRPS: desc("rps_stable_per_second", "Average number of requests per second over the stable window."),
		panicRPS:  desc("rps_panic_per_second", "Average number of requests per second over the panic window."),
		targetRPS: desc("rps_target_per_second", "Target number of requests per second per instance."),
	}
}

func describe() descriptions {
	desc := func(name, help string, labels ...string) *metrics.Desc {
		labels = append([]string{"namespace", "service", "configuration", "revision"}, labels...)
		return metrics.NewDesc(metrics.BuildFQName("knative", "autoscaler", name), help, labels, nil, metrics.ALPHA, "")
	}
	return descriptions{
		desired:     desc("desired_instances", "Desired number of instances of the revision."),
		ready:       desc("ready_instances", "Number of ready instances of the revision."),
		panicking:   desc("panic_mode", "1 if the revision scales on its panic window, otherwise 0."),
		excessBurst: desc("excess_burst_capacity", "Capacity of the ready instances minus requests in flight and target burst capacity, in requests. Negative if capacity is missing."),

		stableConcurrency: desc("stable_request_concurrency", "Average number of requests in flight over the stable window."),
		panicConcurrency:  desc("panic_request_concurrency", "Average number of requests in flight over the panic window."),
		targetConcurrency: desc("target_concurrency_per_instance", "Target number of requests in flight per instance."),

		stableRPS: desc("stable_requests_per_second", "Average number of requests per second over the stable window."),
		panicRPS:  desc("panic_requests_per_second", "Average number of requests per second over the panic window."),
		targetRPS: desc("target_requests_per_second_per_instance", "Target number of requests per second per instance."),

		knative: describeKnative(),

		changes: desc("scale_changes_total", "Number of decisions that changed the number of instances, by direction (up, down).", "direction"),
	}
}

// stats are the values of the metrics of one revision, and what explains its scale.
type stats struct {
	ready             int32
	decision          decision
	stable, panicking average
	target            float64
	rps               bool
	ups, downs        int
	// state is nil at zero.
	state *state
}

// collector implements metrics.StableCollector for a registry.
type collector struct {
	metrics.BaseStableCollector
	descriptions descriptions
	options      *Options
	registry     *registry
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(to chan<- *metrics.Desc) {
	d, k := &c.descriptions, &c.descriptions.knative
	for _, desc := range []*metrics.Desc{
		k.desired, k.ready, k.panicking, k.excess, k.stableConcurrency, k.panicConcurrency, k.targetConcurrency, k.stableRPS, k.panicRPS, k.targetRPS,
		d.desired, d.ready, d.panicking, d.excessBurst, d.stableConcurrency, d.panicConcurrency,
		d.targetConcurrency, d.stableRPS, d.panicRPS, d.targetRPS, d.changes,
	} {
		to <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(to chan<- metrics.Metric) {
	type collected struct {
		spec  *routing.Revision
		stats stats
	}
	if !c.options.leading() {
		// The latest decisions of this replica are outdated.
		return
	}
	c.registry.mu.Lock()
	all := make([]collected, 0, len(c.registry.revisions))
	for _, r := range c.registry.revisions {
		if r.spec != nil {
			all = append(all, collected{r.spec, r.stats})
		}
	}
	c.registry.mu.Unlock()
	for _, r := range all {
		c.descriptions.collect(to, r.spec, &r.stats)
	}
}

// collect sends the metrics of one revision.
func (d *descriptions) collect(to chan<- metrics.Metric, spec *routing.Revision, s *stats) {
	labels := []string{spec.Key.Namespace, spec.Service, spec.Configuration, spec.Key.Name}
	gauge := func(value float64, descs ...*metrics.Desc) {
		for _, desc := range descs {
			to <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, labels...)
		}
	}
	changes := func(direction string, count int) {
		to <- metrics.NewLazyConstMetric(d.changes, metrics.CounterValue, float64(count), append(labels[:4:4], direction)...)
	}
	k := &d.knative
	gauge(float64(s.decision.Desired), d.desired, k.desired)
	gauge(float64(s.ready), d.ready, k.ready)
	changes("up", s.ups)
	changes("down", s.downs)
	if s.decision.Desired == 0 {
		return
	}
	panicking := 0.0
	if s.decision.Panicking {
		panicking = 1
	}
	gauge(panicking, d.panicking, k.panicking)
	gauge(float64(s.decision.ExcessBurstCapacity), d.excessBurst, k.excess)
	gauge(s.stable.Concurrency, d.stableConcurrency)
	gauge(s.panicking.Concurrency, d.panicConcurrency)
	gauge(s.stable.RequestsPerSecond, d.stableRPS)
	gauge(s.panicking.RequestsPerSecond, d.panicRPS)
	// Knative reports the averages of the metric by which the revision scales only.
	if s.rps {
		gauge(s.target, d.targetRPS, k.targetRPS)
		gauge(s.stable.RequestsPerSecond, k.stableRPS)
		gauge(s.panicking.RequestsPerSecond, k.panicRPS)
	} else {
		gauge(s.target, d.targetConcurrency, k.targetConcurrency)
		gauge(s.stable.Concurrency, k.stableConcurrency)
		gauge(s.panicking.Concurrency, k.panicConcurrency)
	}
}
