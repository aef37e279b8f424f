package flow

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/component-base/metrics"
)

// maxReported is the number of namespaces in the metrics: the ones that hold most.
const maxReported = 20

// Metrics returns a collector of the use of a Budget, with the twenty namespaces that hold most.
func (b *Budget) Metrics() metrics.StableCollector {
	return &collector{
		budget: b,
		limit: metrics.NewDesc("knative_memory_budget_limit_bytes",
			"Maximum number of bytes of memory that requests, events and deliveries may hold in this process.", nil, nil, metrics.ALPHA, ""),
		used: metrics.NewDesc("knative_memory_budget_used_bytes",
			"Number of bytes of memory that requests, events and deliveries hold.", nil, nil, metrics.ALPHA, ""),
		held: metrics.NewDesc("knative_memory_budget_namespace_used_bytes",
			"Number of bytes of memory that requests, events and deliveries hold, for the twenty namespaces that hold most.",
			[]string{"namespace"}, nil, metrics.ALPHA, ""),
	}
}

// collector implements metrics.StableCollector for a Budget.
type collector struct {
	metrics.BaseStableCollector

	budget            *Budget
	limit, used, held *metrics.Desc
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(to chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{c.limit, c.used, c.held} {
		to <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(to chan<- metrics.Metric) {
	c.budget.mu.Lock()
	used, held := c.budget.used, maps.Clone(c.budget.namespaces)
	c.budget.mu.Unlock()
	most := slices.SortedFunc(maps.Keys(held), func(a, b string) int {
		return cmp.Or(cmp.Compare(held[b], held[a]), cmp.Compare(a, b))
	})
	to <- metrics.NewLazyConstMetric(c.limit, metrics.GaugeValue, float64(c.budget.limit))
	to <- metrics.NewLazyConstMetric(c.used, metrics.GaugeValue, float64(used))
	for _, namespace := range most[:min(len(most), maxReported)] {
		to <- metrics.NewLazyConstMetric(c.held, metrics.GaugeValue, float64(held[namespace]), namespace)
	}
}
