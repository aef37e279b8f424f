package trace

import (
	"cmp"
	"slices"
	"sync/atomic"

	basemetrics "k8s.io/component-base/metrics"
)

// maxLabels bounds the namespaces that metrics name. The others are counted together, with an empty name.
const maxLabels = 500

// metrics reports the metrics of a Store. Its counters of a namespace are removed with the last record of the namespace.
type metrics struct {
	basemetrics.BaseStableCollector

	store *Store
	// recorded counts the written records, homeless those that were dropped because too many namespaces have records.
	recorded, homeless atomic.Int64
	// entries is the number of index entries in memory.
	entries atomic.Int64
}

var (
	recordedDesc = basemetrics.NewDesc("knative_eventing_trace_records_total", "Number of trace records that were written.", nil, nil, basemetrics.ALPHA, "")
	bytesDesc    = basemetrics.NewDesc("knative_eventing_trace_bytes", "Size of all trace records on disk in bytes.", nil, nil, basemetrics.ALPHA, "")
	entriesDesc  = basemetrics.NewDesc("knative_eventing_trace_index_entries", "Number of entries of the index of trace records in memory, 16 bytes each.", nil, nil, basemetrics.ALPHA, "")
	droppedDesc  = basemetrics.NewDesc("knative_eventing_trace_dropped_total", "Number of trace records that were not written, because the queue was full or the disk failed.", []string{"namespace"}, nil, basemetrics.ALPHA, "")
	evictedDesc  = basemetrics.NewDesc("knative_eventing_trace_evicted_total", "Number of trace records that were deleted for lack of space before the retention time.", []string{"namespace"}, nil, basemetrics.ALPHA, "")
)

// DescribeWithStability implements metrics.StableCollector.
func (m *metrics) DescribeWithStability(to chan<- *basemetrics.Desc) {
	for _, desc := range []*basemetrics.Desc{recordedDesc, bytesDesc, entriesDesc, droppedDesc, evictedDesc} {
		to <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (m *metrics) CollectWithStability(to chan<- basemetrics.Metric) {
	type counts struct {
		namespace        string
		dropped, evicted int64
	}
	bytes, others := int64(0), counts{dropped: m.homeless.Load()}
	var all []counts
	for _, t := range m.store.all() {
		t.mu.RLock()
		bytes += t.bytes
		t.mu.RUnlock()
		if c := (counts{t.namespace, t.dropped.Load(), t.evicted.Load()}); c.dropped+c.evicted > 0 {
			all = append(all, c)
		}
	}
	if len(all) > maxLabels {
		// The namespaces with the highest numbers are named.
		slices.SortFunc(all, func(a, b counts) int { return cmp.Compare(b.dropped+b.evicted, a.dropped+a.evicted) })
		for _, c := range all[maxLabels:] {
			others.dropped += c.dropped
			others.evicted += c.evicted
		}
		all = all[:maxLabels]
	}
	for _, c := range append(all, others) {
		to <- basemetrics.NewLazyConstMetric(droppedDesc, basemetrics.CounterValue, float64(c.dropped), c.namespace)
		to <- basemetrics.NewLazyConstMetric(evictedDesc, basemetrics.CounterValue, float64(c.evicted), c.namespace)
	}
	to <- basemetrics.NewLazyConstMetric(recordedDesc, basemetrics.CounterValue, float64(m.recorded.Load()))
	to <- basemetrics.NewLazyConstMetric(bytesDesc, basemetrics.GaugeValue, float64(bytes))
	to <- basemetrics.NewLazyConstMetric(entriesDesc, basemetrics.GaugeValue, float64(m.entries.Load()))
}
