package autoscaler

import (
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// descriptions are those of a Loop's metrics, which have the labels namespace, service, configuration and
// revision. Revisions at rest have the numbers of instances and of changes only; those that are gone have none.
type descriptions struct {
	desired, ready, panicking, excessBurst                 *metrics.Desc
	stableConcurrency, panicConcurrency, targetConcurrency *metrics.Desc
	stableRPS, panicRPS, targetRPS                         *metrics.Desc
	changes                                                *metrics.Desc
}

func describe() descriptions {
	desc := func(name, help string, labels ...string) *metrics.Desc {
		labels = append([]string{"namespace", "service", "configuration", "revision"}, labels...)
		return metrics.NewDesc(metrics.BuildFQName("knative", "autoscaler", name), help, labels, nil, metrics.ALPHA, "")
	}
	return descriptions{
		desired:     desc("desired_instances", "Number of instances the revision is to run."),
		ready:       desc("ready_instances", "Number of instances of the revision that take requests."),
		panicking:   desc("panic_mode", "1 while the revision scales on its panic window, else 0."),
		excessBurst: desc("excess_burst_capacity", "Requests that could come at once beyond what the ready instances have and the target burst capacity; missing ones where negative."),

		stableConcurrency: desc("stable_request_concurrency", "Average of requests in flight over the stable window."),
		panicConcurrency:  desc("panic_request_concurrency", "Average of requests in flight over the panic window."),
		targetConcurrency: desc("target_concurrency_per_instance", "Requests in flight that one instance is to get on average."),

		stableRPS: desc("stable_requests_per_second", "Requests per second over the stable window."),
		panicRPS:  desc("panic_requests_per_second", "Requests per second over the panic window."),
		targetRPS: desc("target_requests_per_second_per_instance", "Requests per second that one instance is to get."),

		changes: desc("scale_changes_total", "Number of decisions that changed the number of instances, by direction (up, down).", "direction"),
	}
}

// report is what the metrics tell of one revision.
type report struct {
	ready             int32
	decision          Decision
	stable, panicking Average
	target            float64
	rps               bool
	ups, downs        int
}

// publish makes a decision known to Activate and the metrics.
func (l *Loop) publish(r *revision, d Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.desired = d.Desired
	r.report.ready, r.report.decision = r.running.Ready, d
	r.report.stable, r.report.panicking = r.stable, r.panicking
	r.report.target, r.report.rps = r.config.Target, r.config.RPS
}

// count counts a change of the scale.
func (l *Loop) count(r *revision, before int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.desired > before {
		r.report.ups++
	} else {
		r.report.downs++
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (l *Loop) DescribeWithStability(to chan<- *metrics.Desc) {
	d := &l.descriptions
	for _, desc := range []*metrics.Desc{
		d.desired, d.ready, d.panicking, d.excessBurst, d.stableConcurrency, d.panicConcurrency,
		d.targetConcurrency, d.stableRPS, d.panicRPS, d.targetRPS, d.changes,
	} {
		to <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (l *Loop) CollectWithStability(to chan<- metrics.Metric) {
	type reported struct {
		spec   *routing.Revision
		report report
	}
	if !l.leading() {
		// Its decisions are those of another time.
		return
	}
	l.mu.Lock()
	all := make([]reported, 0, len(l.revisions))
	for _, r := range l.revisions {
		if r.spec != nil {
			all = append(all, reported{r.spec, r.report})
		}
	}
	l.mu.Unlock()
	for _, r := range all {
		l.descriptions.collect(to, r.spec, &r.report)
	}
}

func (d *descriptions) collect(to chan<- metrics.Metric, spec *routing.Revision, r *report) {
	labels := []string{spec.Key.Namespace, spec.Service, spec.Configuration, spec.Key.Name}
	gauge := func(desc *metrics.Desc, value float64) {
		to <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, labels...)
	}
	changes := func(direction string, count int) {
		to <- metrics.NewLazyConstMetric(d.changes, metrics.CounterValue, float64(count), append(labels[:4:4], direction)...)
	}
	gauge(d.desired, float64(r.decision.Desired))
	gauge(d.ready, float64(r.ready))
	changes("up", r.ups)
	changes("down", r.downs)
	if r.decision.Desired == 0 {
		return
	}
	panicking := 0.0
	if r.decision.Panicking {
		panicking = 1
	}
	gauge(d.panicking, panicking)
	gauge(d.excessBurst, float64(r.decision.ExcessBurstCapacity))
	gauge(d.stableConcurrency, r.stable.Concurrency)
	gauge(d.panicConcurrency, r.panicking.Concurrency)
	gauge(d.stableRPS, r.stable.RequestsPerSecond)
	gauge(d.panicRPS, r.panicking.RequestsPerSecond)
	if r.rps {
		gauge(d.targetRPS, r.target)
	} else {
		gauge(d.targetConcurrency, r.target)
	}
}
