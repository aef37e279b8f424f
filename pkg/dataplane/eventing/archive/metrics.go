package archive

import (
	"cmp"
	"slices"
	"sync/atomic"

	basemetrics "k8s.io/component-base/metrics"
)

// maxLabels bounds the namespaces that metrics name. The others are counted together, with an empty name.
const maxLabels = 500

// metrics reports the metrics of a Store. Each replica counts what it archived and deleted.
type metrics struct {
	basemetrics.BaseStableCollector

	store *Store
	// bytes is the size of all archives at the last sweep.
	bytes atomic.Int64
}

var (
	bytesDesc    = basemetrics.NewDesc("knative_eventing_archive_bytes", "Size of the archives of all Brokers in bytes.", nil, nil, basemetrics.ALPHA, "")
	archivedDesc = basemetrics.NewDesc("knative_eventing_archived_total", "Number of accepted events that were archived.", []string{"namespace"}, nil, basemetrics.ALPHA, "")
	missedDesc   = basemetrics.NewDesc("knative_eventing_archive_missed_total", "Number of accepted events of Brokers with an archive that could not be archived.", []string{"namespace"}, nil, basemetrics.ALPHA, "")
	evictedDesc  = basemetrics.NewDesc("knative_eventing_archive_evicted_total", "Number of events that were deleted from archives for lack of space (reason size) or because of their age.", []string{"namespace", "reason"}, nil, basemetrics.ALPHA, "")
)

// DescribeWithStability implements metrics.StableCollector.
func (m *metrics) DescribeWithStability(to chan<- *basemetrics.Desc) {
	for _, desc := range []*basemetrics.Desc{bytesDesc, archivedDesc, missedDesc, evictedDesc} {
		to <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (m *metrics) CollectWithStability(to chan<- basemetrics.Metric) {
	type counts struct {
		namespace                          string
		archived, missed, evicted, expired int64
	}
	var all []counts
	var others counts
	m.store.namespaces.Range(func(_, found any) bool {
		n := found.(*namespace)
		c := counts{n.name, n.archived.Load(), n.missed.Load(), n.evicted.Load(), n.expired.Load()}
		if c.archived+c.missed+c.evicted+c.expired > 0 {
			all = append(all, c)
		}
		return true
	})
	if len(all) > maxLabels {
		// The namespaces with most losses are named, then the ones with most events.
		slices.SortFunc(all, func(a, b counts) int {
			return cmp.Or(cmp.Compare(b.missed+b.evicted, a.missed+a.evicted), cmp.Compare(b.archived, a.archived))
		})
		for _, c := range all[maxLabels:] {
			others.archived += c.archived
			others.missed += c.missed
			others.evicted += c.evicted
			others.expired += c.expired
		}
		all = all[:maxLabels]
	}
	for _, c := range append(all, others) {
		to <- basemetrics.NewLazyConstMetric(archivedDesc, basemetrics.CounterValue, float64(c.archived), c.namespace)
		to <- basemetrics.NewLazyConstMetric(missedDesc, basemetrics.CounterValue, float64(c.missed), c.namespace)
		to <- basemetrics.NewLazyConstMetric(evictedDesc, basemetrics.CounterValue, float64(c.evicted), c.namespace, "size")
		to <- basemetrics.NewLazyConstMetric(evictedDesc, basemetrics.CounterValue, float64(c.expired), c.namespace, "age")
	}
	to <- basemetrics.NewLazyConstMetric(bytesDesc, basemetrics.GaugeValue, float64(m.bytes.Load()))
}
