package autoscaler

import "time"

// bucket is the resolution of a window.
const bucket = time.Second

// Sample is the load of one revision at the gateways since the previous sample.
type Sample struct {
	// Concurrency is the time-weighted average number of requests in flight or waiting for a backend.
	Concurrency float64
	// RequestsPerSecond is the rate of arrivals.
	RequestsPerSecond float64
	// Waiting is the number of requests that wait for a backend now.
	Waiting int
}

// average is the load over some time.
type average struct {
	Concurrency, RequestsPerSecond float64
}

// window holds the latest samples, in buckets of one second.
type window struct {
	buckets []sampled
}

// sampled is the sum of the samples in one second; second is in Unix time.
type sampled struct {
	second                             int64
	duration, concurrencyTime, arrived float64
}

// newWindow returns an empty window of length, rounded down to seconds.
func newWindow(length time.Duration) *window {
	return &window{buckets: make([]sampled, max(1, length/bucket))}
}

// length returns the time that the window spans.
func (w *window) length() time.Duration { return time.Duration(len(w.buckets)) * bucket }

// resized returns a window of another length with the samples that fit.
func (w *window) resized(length time.Duration) *window {
	resized := newWindow(length)
	for _, b := range w.buckets {
		if to := resized.at(b.second); b.second > to.second {
			*to = b
		}
	}
	return resized
}

// Add adds a sample of the period that ends now.
func (w *window) Add(now time.Time, period time.Duration, sample Sample) {
	second := now.Unix()
	b := w.at(second)
	if b.second != second {
		*b = sampled{second: second}
	}
	seconds := period.Seconds()
	b.duration += seconds
	b.concurrencyTime += sample.Concurrency * seconds
	b.arrived += sample.RequestsPerSecond * seconds
}

// average returns the average over the latest part of the window, which must not exceed its length. Each sample weighs by its
// period; time before the first sample does not count as time without requests. Periods that sum up to less than a second
// count as a second, so that a brief burst does not look like a lasting load. average returns false without any sample.
func (w *window) average(now time.Time, latest time.Duration) (average, bool) {
	newest := now.Unix()
	oldest := newest - int64(latest/bucket) + 1
	var sum sampled
	// A new sum costs little and, unlike a running total, returns to exactly zero.
	for _, b := range w.buckets {
		if b.second < oldest || b.second > newest {
			continue
		}
		sum.duration += b.duration
		sum.concurrencyTime += b.concurrencyTime
		sum.arrived += b.arrived
	}
	if sum.duration == 0 {
		return average{}, false
	}
	seconds := max(sum.duration, bucket.Seconds())
	return average{Concurrency: sum.concurrencyTime / seconds, RequestsPerSecond: sum.arrived / seconds}, true
}

// at returns the bucket of a second.
func (w *window) at(second int64) *sampled {
	return &w.buckets[second%int64(len(w.buckets))]
}
