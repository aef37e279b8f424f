package broker

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// failuresToFail is the number of attempts in a row after whose failure deliveries are said to fail. An event that
	// was given up is reason enough alone.
	failuresToFail = 3
	// quietFor is the least time between two reports of a change, newsAfter that between reports that deliveries fail
	// for another reason now.
	quietFor, newsAfter = 10 * time.Second, time.Minute
)

// health summarizes the attempts of a consumer, and reports changes immediately, but seldom.
type health struct {
	changed func()
	clock   clock.WithDelayedExecution

	mu sync.Mutex
	// All below is guarded by mu: the current health, the reported one, and the time of the report.
	failures int
	gaveUp   bool
	known    eventing.Health
	said     eventing.Health
	reported time.Time
	timer    clock.Timer
}

// observe notes the outcome of an attempt. gaveUp is true if no other attempt follows.
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

// say makes the current health the reported one. mu is held.
func (h *health) say(now time.Time) {
	h.reported = now
	if h.said = (eventing.Health{}); h.known.Failing {
		h.said = h.known
	}
}

// get returns the reported health: it does not change between reports, so that no controller writes each failure.
func (h *health) get() eventing.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.said
}
