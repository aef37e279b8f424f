package pool

import "time"

// phase is a phase of a cold start.
type phase int

const (
	// scheduling ends when the Revision is activated.
	scheduling phase = iota
	// starting ends when a request gets a backend.
	starting
	// forwarding ends when the response starts.
	forwarding
)

// phases are the names of the phases in metrics.
var phases = [...]string{scheduling: "scheduling", starting: "starting", forwarding: "forwarding"}

// coldStart is the progress of a pool from the first request without a backend until the response starts. The zero value is
// none.
type coldStart struct {
	// began is the time at which the first request started to wait, activated the time of the activation, ready the time at
	// which the request got a backend.
	began, activated, ready time.Time
}

// begin begins a cold start. It returns false if one is in progress.
func (c *coldStart) begin(now time.Time) bool {
	if !c.began.IsZero() {
		return false
	}
	*c = coldStart{began: now}
	return true
}

// cancel ends the cold start if it has no backend yet.
func (c *coldStart) cancel() {
	if !c.began.IsZero() {
		*c = coldStart{}
	}
}

// end ends a phase, and returns its duration; ok is false if the cold start is not in this phase.
func (c *coldStart) end(p phase, now time.Time) (took time.Duration, ok bool) {
	var since time.Time
	switch p {
	case scheduling:
		if c.activated.IsZero() {
			since = c.began
		}
		if !since.IsZero() {
			c.activated = now
		}
	case starting:
		if since = c.activated; since.IsZero() {
			since = c.began
		}
		if !since.IsZero() {
			*c = coldStart{ready: now}
		}
	case forwarding:
		since, c.ready = c.ready, time.Time{}
	}
	return now.Sub(since), !since.IsZero()
}
