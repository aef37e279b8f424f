// Package pressure measures whether processors are scarce. The tenants that use most are throttled then.
package pressure

import (
	"bytes"
	"math"
	"os"
	"runtime/metrics"
	"strconv"
	"time"
)

const (
	// Processors are scarce if the 90th percentile of the scheduling latency in this process exceeds maxDelay, or if some task on
	// this machine waited for a processor for more than maxStalled of the time.
	maxDelay   = 100 * time.Microsecond
	maxStalled = 0.4
	// pressureFile is the pressure stall information of Linux, if the kernel has it.
	pressureFile = "/proc/pressure/cpu"
)

// Gauge measures how long tasks wait for a processor, in this process and on this machine. Not safe for concurrent use.
type Gauge struct {
	sample []metrics.Sample
	// before is the histogram at the previous call.
	before []uint64
	// pressure is nil without pressureFile. stalledBefore is its total at the previous call.
	pressure      *os.File
	stalledBefore time.Duration
	// called is the time of the previous call.
	called time.Time
}

// New returns a Gauge, which the caller must Close.
func New() *Gauge {
	g := &Gauge{sample: []metrics.Sample{{Name: "/sched/latencies:seconds"}}, called: time.Now()}
	if file, err := os.Open(pressureFile); err == nil {
		g.pressure = file
	}
	g.late()
	g.stalled()
	return g
}

// Close closes the files of the gauge.
func (g *Gauge) Close() {
	if g.pressure != nil {
		g.pressure.Close()
	}
}

// Scarce reports whether processors were scarce since the previous call.
func (g *Gauge) Scarce() bool {
	now := time.Now()
	elapsed := now.Sub(g.called)
	g.called = now
	// Both measure the time since their previous call, so both are called each time.
	late, stalled := g.late(), g.stalled()
	return late > maxDelay || stalled.Seconds() > maxStalled*elapsed.Seconds()
}

// stalled returns the time since the previous call in which some task on this machine waited.
func (g *Gauge) stalled() time.Duration {
	if g.pressure == nil {
		return 0
	}
	var text [256]byte
	n, _ := g.pressure.ReadAt(text[:], 0)
	before := g.stalledBefore
	g.stalledBefore = stallOf(text[:n])
	return g.stalledBefore - before
}

// stallOf parses the total of the first line, "some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>". It returns 0 for
// other text.
func stallOf(text []byte) time.Duration {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	_, total, _ := bytes.Cut(line, []byte("total="))
	microseconds, err := strconv.ParseInt(string(total), 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(microseconds) * time.Microsecond
}

// late returns the 90th percentile of the scheduling latency since the previous call.
func (g *Gauge) late() time.Duration {
	metrics.Read(g.sample)
	if g.sample[0].Value.Kind() != metrics.KindFloat64Histogram {
		return 0
	}
	histogram := g.sample[0].Value.Float64Histogram()
	if len(g.before) != len(histogram.Counts) {
		g.before = make([]uint64, len(histogram.Counts))
	}
	var all uint64
	for i, n := range histogram.Counts {
		all += n - g.before[i]
	}
	late := 0.0
	rest := all / 10
	for i := len(histogram.Counts) - 1; i >= 0; i-- {
		n := histogram.Counts[i] - g.before[i]
		if n > rest {
			late = histogram.Buckets[i]
			break
		}
		rest -= n
	}
	copy(g.before, histogram.Counts)
	if math.IsInf(late, 0) {
		return 0
	}
	return time.Duration(late * float64(time.Second))
}
