package broker

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// failuresToFail is the number of consecutive failed attempts after which deliveries are reported as failing. One
	// dropped or dead-lettered event suffices too.
	failuresToFail = 3
	// quietFor is the minimum time between two reports of a change, newsAfter the minimum time between reports that
	// only the reason of failures changed.
	quietFor, newsAfter = 10 * time.Second, time.Minute
)

// health summarizes the attempts of a consumer, and reports changes immediately, at a limited rate.
type health struct {
	changed func()
	clock   clock.WithDelayedExecution

	mu sync.Mutex
	// mu guards the fields below: the current health, the reported one, and the time of the report.
	failures int
	gaveUp   bool
	known    eventing.Health
	said     eventing.Health
	reported time.Time
	timer    clock.Timer
}

// observe records the outcome of an attempt. gaveUp is true if no other attempt follows.
func (h *health) observe(err error, gaveUp bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && h.failures == 0 {
		return
	}
	now := h.clock.Now()
	if err == nil {
		h.failures, h.gaveUp, h.known = 0, false, eventing.Health{}
	} else {
		if h.failures == 0 {
			h.known.Since = now
		}
		h.failures++
		h.gaveUp = h.gaveUp || gaveUp
		h.known.Failing = h.gaveUp || h.failures >= failuresToFail
		h.known.LastError = err.Error()
	}
	wait := quietFor
	switch {
	case h.timer != nil || h.known.Failing == h.said.Failing && (!h.known.Failing || h.known == h.said):
		return
	case h.known.Failing && h.said.Failing:
		wait = newsAfter
	}
	if wait -= now.Sub(h.reported); wait > 0 && !h.reported.IsZero() {
		h.timer = h.clock.AfterFunc(wait, h.report)
		return
	}
	h.say(now)
	go h.changed()
}

// report reports the changes since the last report.
func (h *health) report() {
	h.mu.Lock()
	h.timer = nil
	changed := h.known.Failing || h.said.Failing
	h.say(h.clock.Now())
	h.mu.Unlock()
	if changed {
		h.changed()
	}
}

// say reports the current health. mu is held.
func (h *health) say(now time.Time) {
	h.reported = now
	if h.said = (eventing.Health{}); h.known.Failing {
		h.said = h.known
	}
}

// get returns the reported health. It does not change between reports, so that controllers do not write each failure.
func (h *health) get() eventing.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.said
}
