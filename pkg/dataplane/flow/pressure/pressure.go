// Package pressure tells whether processors are scarce: then who takes most of them is to have less.
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
	// maxDelay is how long what is to run in this process may wait for a processor, nine times of ten, and maxStalled for which
	// part of the time anything on this machine may, before processors are scarce.
	maxDelay   = 100 * time.Microsecond
	maxStalled = 0.4
	// pressureFile is where Linux tells the latter, if it was built to.
	pressureFile = "/proc/pressure/cpu"
)

// Gauge tells whether what is to run waits for a processor: in this process, and on this machine. Not safe for concurrent use.
type Gauge struct {
	sample []metrics.Sample
	// before are the counts at the previous call.
	before []uint64
	// pressure is nil where the system tells nothing. stalledBefore is what it told at the previous call.
	pressure      *os.File
	stalledBefore time.Duration
	// asked is when the previous call was.
	asked time.Time
}

// New returns a Gauge, which ends with Close.
func New() *Gauge {
	g := &Gauge{sample: []metrics.Sample{{Name: "/sched/latencies:seconds"}}, asked: time.Now()}
	if file, err := os.Open(pressureFile); err == nil {
		g.pressure = file
	}
	g.late()
	g.stalled()
	return g
}

// Close ends the use of the gauge.
func (g *Gauge) Close() {
	if g.pressure != nil {
		g.pressure.Close()
	}
}

// Scarce tells whether processors were scarce in the time since the previous call.
func (g *Gauge) Scarce() bool {
	now := time.Now()
	elapsed := now.Sub(g.asked)
	g.asked = now
	// Both are asked each time, as they tell of the time since.
	late, stalled := g.late(), g.stalled()
	return late > maxDelay || stalled.Seconds() > maxStalled*elapsed.Seconds()
}

// stalled returns for how long, since the previous call, anything on this machine waited.
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

// stallOf reads the total of "some avg10=0.00 avg60=0.00 avg300=0.00 total=<microseconds>", the first line; 0 if it is not of
// that form.
func stallOf(text []byte) time.Duration {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	_, total, _ := bytes.Cut(line, []byte("total="))
	microseconds, err := strconv.ParseInt(string(total), 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(microseconds) * time.Microsecond
}

// late returns the wait that nine of ten did not exceed since the previous call.
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
