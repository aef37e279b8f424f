package flow

import "time"

// The control law of fair sharing. While processors are scarce, the window of each tenant whose requests cost more than an
// equal share in the last ThrottleInterval shrinks to three quarters of the requests in flight; otherwise it grows by a sixteenth. A tenant
// shares for ActiveFor after its last request. A tenant alone is not throttled.
const (
	ThrottleInterval = 20 * time.Millisecond
	ActiveFor        = 5 * time.Second
)

// Window bounds the requests of one tenant in flight. Min and Max are its bounds while the tenant shares.
type Window struct{ Min, Max int64 }

// Next returns the size that follows size. aboveShare reports whether the tenant's requests cost more than an equal
// share, scarce whether processors are scarce.
func (w Window) Next(size, inFlight int64, scarce, aboveShare bool) int64 {
	switch {
	case scarce && aboveShare:
		return min(size, max(w.Min, min(size, inFlight)*3/4))
	case !scarce:
		return min(size+1+size/16, w.Max)
	}
	return size
}
