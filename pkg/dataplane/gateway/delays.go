package gateway

import (
	"math"
	"runtime/metrics"
	"time"
)

// delays tells how long what is to run in this process waits for a processor.
type delays struct {
	sample []metrics.Sample
	// before are the counts at the previous call.
	before []uint64
}

func newDelays() *delays {
	d := &delays{sample: []metrics.Sample{{Name: "/sched/latencies:seconds"}}}
	d.late()
	return d
}

// late returns the wait that nine of ten did not exceed since the previous call.
func (d *delays) late() time.Duration {
	metrics.Read(d.sample)
	if d.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	histogram := d.sample[0].Value.Float64Histogram()
	if len(d.before) != len(histogram.Counts) {
		d.before = make([]uint64, len(histogram.Counts))
	}
	var all uint64
	for i, n := range histogram.Counts {
		all += n - d.before[i]
	}
	late := 0.0
	rest := all / 10
	for i := len(histogram.Counts) - 1; i >= 0; i-- {
		n := histogram.Counts[i] - d.before[i]
		if n > rest {
			late = histogram.Buckets[i]
			break
		}
		rest -= n
	}
	copy(d.before, histogram.Counts)
	if math.IsInf(late, 0) {
		return 0
	}
	return time.Duration(late * float64(time.Second))
}
