package pool

import "time"

// usage measures the requests of a pool between samples.
type usage struct {
	// inFlight is the number of requests in flight, arrivals the number of requests that began since the last sample.
	inFlight, arrivals int
	// sampled is the time of the last sample; area counts until changed.
	sampled, changed time.Time
	// area is the sum of the time that requests were in flight.
	area time.Duration
}

func (u *usage) advance(now time.Time) {
	// Callers read the clock before they lock the pool.
	if elapsed := now.Sub(u.changed); elapsed > 0 {
		u.area += time.Duration(u.inFlight) * elapsed
		u.changed = now
	}
}

// since starts the interval of the next sample at a time before which there were no requests, if the previous sample was
// earlier.
func (u *usage) since(start time.Time) {
	if u.inFlight == 0 && u.sampled.Before(start) {
		u.sampled, u.changed, u.area, u.arrivals = start, start, 0, 0
	}
}

func (u *usage) begin(now time.Time) {
	u.advance(now)
	u.inFlight++
	u.arrivals++
}

func (u *usage) end(now time.Time) {
	u.advance(now)
	u.inFlight--
}

// sample returns the average number of requests in flight since the previous call, and requests per second.
func (u *usage) sample(now time.Time) (concurrency, rps float64) {
	u.advance(now)
	elapsed := u.changed.Sub(u.sampled)
	if elapsed <= 0 {
		return float64(u.inFlight), 0
	}
	concurrency = float64(u.area) / float64(elapsed)
	rps = float64(u.arrivals) / elapsed.Seconds()
	u.sampled, u.area, u.arrivals = u.changed, 0, 0
	return concurrency, rps
}
