package deadletter

import (
	"cmp"
	"slices"
	"sync/atomic"

	basemetrics "k8s.io/component-base/metrics"
)

// maxLabels bounds the namespaces that metrics name. The others are counted together, with an empty name.
const maxLabels = 500

// metrics reports the metrics of a Store. Each replica counts what it deleted.
type metrics struct {
	basemetrics.BaseStableCollector

	store *Store
	// bytes is the size of all dead letters at the last sweep.
	bytes atomic.Int64
}

var (
	bytesDesc   = basemetrics.NewDesc("knative_eventing_dead_letter_store_bytes", "Size of all dead letters in the dead letter store in bytes.", nil, nil, basemetrics.ALPHA, "")
	evictedDesc = basemetrics.NewDesc("knative_eventing_dead_letters_evicted_total", "Number of dead letters that were deleted from the dead letter store for lack of space (reason size) or because of their age.", []string{"namespace", "reason"}, nil, basemetrics.ALPHA, "")
)

// DescribeWithStability implements metrics.StableCollector.
func (m *metrics) DescribeWithStability(to chan<- *basemetrics.Desc) {
	to <- bytesDesc
	to <- evictedDesc
}

// CollectWithStability implements metrics.StableCollector.
func (m *metrics) CollectWithStability(to chan<- basemetrics.Metric) {
	type counts struct {
		namespace        string
		evicted, expired int64
	}
	var all []counts
	var others counts
	m.store.namespaces.Range(func(_, found any) bool {
		n := found.(*namespace)
		if c := (counts{n.name, n.evicted.Load(), n.expired.Load()}); c.evicted+c.expired > 0 {
			all = append(all, c)
		}
		return true
	})
	if len(all) > maxLabels {
		// The namespaces with the highest numbers are named.
		slices.SortFunc(all, func(a, b counts) int { return cmp.Compare(b.evicted+b.expired, a.evicted+a.expired) })
		for _, c := range all[maxLabels:] {
			others.evicted += c.evicted
			others.expired += c.expired
		}
		all = all[:maxLabels]
	}
	for _, c := range append(all, others) {
		to <- basemetrics.NewLazyConstMetric(evictedDesc, basemetrics.CounterValue, float64(c.evicted), c.namespace, "size")
		to <- basemetrics.NewLazyConstMetric(evictedDesc, basemetrics.CounterValue, float64(c.expired), c.namespace, "age")
	}
	to <- basemetrics.NewLazyConstMetric(bytesDesc, basemetrics.GaugeValue, float64(m.bytes.Load()))
}
