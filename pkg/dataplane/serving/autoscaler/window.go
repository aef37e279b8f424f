package autoscaler

import "time"

// bucket is the resolution of a Window.
const bucket = time.Second

// Sample is what the gateway saw of one revision's requests since the previous sample.
type Sample struct {
	// Concurrency is the time-weighted average of the requests in the instances and waiting for one.
	Concurrency float64
	// RequestsPerSecond counts those that arrived.
	RequestsPerSecond float64
	// Waiting is how many requests wait for an instance right now.
	Waiting int
}

// Average is what a Sample tells, over some time.
type Average struct {
	Concurrency, RequestsPerSecond float64
}

// Window holds samples of the latest time, in buckets of a second.
type Window struct {
	buckets []sampled
}

// sampled sums the samples of one second; second is Unix time.
type sampled struct {
	second                             int64
	duration, concurrencyTime, arrived float64
}

// NewWindow returns an empty window of a number of whole seconds.
func NewWindow(length time.Duration) *Window {
	return &Window{buckets: make([]sampled, max(1, length/bucket))}
}

// Length is how long a time the window holds.
func (w *Window) Length() time.Duration { return time.Duration(len(w.buckets)) * bucket }

// Resized returns a window of another length with what fits of the same samples.
func (w *Window) Resized(length time.Duration) *Window {
	resized := NewWindow(length)
	for _, b := range w.buckets {
		if to := resized.at(b.second); b.second > to.second {
			*to = b
		}
	}
	return resized
}

// Add records a sample that was taken now and covers some time.
func (w *Window) Add(now time.Time, covers time.Duration, sample Sample) {
	second := now.Unix()
	b := w.at(second)
	if b.second != second {
		*b = sampled{second: second}
	}
	seconds := covers.Seconds()
	b.duration += seconds
	b.concurrencyTime += sample.Concurrency * seconds
	b.arrived += sample.RequestsPerSecond * seconds
}

// Average averages over the latest part of the window, not longer than its length, weighing each sample by the
// time it covers: what was before the first sample does not count as a time without requests. Less than a
// second of samples counts as a second, so that a moment's burst is not taken for a lasting load. It returns
// false where there is no sample.
func (w *Window) Average(now time.Time, latest time.Duration) (Average, bool) {
	newest := now.Unix()
	oldest := newest - int64(latest/bucket) + 1
	var sum sampled
	// Summing anew costs less than it seems, and unlike a running total it ends at exactly zero.
	for _, b := range w.buckets {
		if b.second < oldest || b.second > newest {
			continue
		}
		sum.duration += b.duration
		sum.concurrencyTime += b.concurrencyTime
		sum.arrived += b.arrived
	}
	if sum.duration == 0 {
		return Average{}, false
	}
	seconds := max(sum.duration, bucket.Seconds())
	return Average{Concurrency: sum.concurrencyTime / seconds, RequestsPerSecond: sum.arrived / seconds}, true
}

func (w *Window) at(second int64) *sampled {
	return &w.buckets[second%int64(len(w.buckets))]
}
