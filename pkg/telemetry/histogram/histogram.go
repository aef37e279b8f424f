// Package histogram counts durations once for several metrics with different bounds.
package histogram

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// bounds are the upper bounds of the buckets, the union of Fine and Knative.
var bounds = [...]time.Duration{
	500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond, 75 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond,
	time.Second, 2500 * time.Millisecond, 5 * time.Second, 7500 * time.Millisecond, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute,
}

// Fine returns the bounds of this server's metrics of requests, in seconds.
func Fine() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
}

// Knative returns the bounds of Knative's metrics of durations, in seconds.
func Knative() []float64 {
	return []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
}

// Histogram counts durations. Its methods may be called concurrently.
type Histogram struct {
	// counts are the numbers of durations in each bucket, the last one of longer durations.
	counts [len(bounds) + 1]atomic.Uint64
	sum    atomic.Int64
}

// Observe counts a duration.
func (h *Histogram) Observe(took time.Duration) {
	i := 0
	for i < len(bounds) && took > bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(int64(took))
}

// Sum is a sum of Histograms.
type Sum struct {
	counts [len(bounds) + 1]uint64
	sum    time.Duration
}

// Add adds the durations of a Histogram.
func (s *Sum) Add(h *Histogram) {
	for i := range h.counts {
		s.counts[i] += h.counts[i].Load()
	}
	s.sum += time.Duration(h.sum.Load())
}

// Merge adds another Sum.
func (s *Sum) Merge(other *Sum) {
	for i, count := range other.counts {
		s.counts[i] += count
	}
	s.sum += other.sum
}

// Count returns the number of durations.
func (s *Sum) Count() (n uint64) {
	for _, count := range s.counts {
		n += count
	}
	return n
}

// Metric returns a histogram in seconds, whose bounds are Fine or Knative.
func (s *Sum) Metric(desc *prometheus.Desc, upper []float64, labels ...string) prometheus.Metric {
	buckets, total, i := make(map[float64]uint64, len(upper)), uint64(0), 0
	for _, bound := range upper {
		for ; i < len(bounds) && bounds[i].Seconds() <= bound; i++ {
			total += s.counts[i]
		}
		buckets[bound] = total
	}
	return prometheus.MustNewConstHistogram(desc, s.Count(), s.sum.Seconds(), buckets, labels...)
}
