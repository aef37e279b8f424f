package autoscaler

import (
	"math"
	"time"
)

const (
	// tickInterval is the interval between decisions about a revision with backends.
	tickInterval = 2 * time.Second
	// calmWindows is the number of panic windows after which panic mode ends early if the load needs a small part of the scale. Knative's
	// stays for the stable window; after a queue was served, that keeps several times the backends that the load needs (TestQuality).
	calmWindows = 4
	// calmParts is the divisor of the scale that yields the small part.
	calmParts = 2
)

// input is the observed state of a revision at one moment.
type input struct {
	Now time.Time
	// Stable and Panic are the averages of the metric over the two windows. If Sampled is false, they are outdated, and the
	// demand stays as decided before.
	Stable, Panic float64
	Sampled       bool
	// Waiting is the number of requests that wait for a backend.
	Waiting int
	// Ready is the number of ready backends, Desired the previously decided scale.
	Ready, Desired int32
	// Activated is true if another replica scaled the revision from zero because a request waits there.
	Activated bool
	// Failing is true if the most recently started backends do not become ready.
	Failing bool
	// Stale is true if a gateway that stopped reporting may have requests in flight: the last backend stays.
	Stale bool
}

// decision is the result of decide.
type decision struct {
	// Desired is the number of backends to run.
	Desired int32
	// Cause is why.
	Cause cause
	// Panicking is true in panic mode.
	Panicking bool
	// ExcessBurstCapacity is the capacity of the ready backends minus the requests in flight and the burst capacity, in
	// requests. It is 0 without and -1 with unlimited burst capacity.
	ExcessBurstCapacity int32
	// Next is the delay until the next decision, 0 if only a waiting request or a change of the configuration requires one.
	Next time.Duration
}

// memory is the state that decisions about one revision share. The zero memory belongs to a revision without a decision.
type memory struct {
	// created is the time of the first decision about a revision that was not ready yet, started the time when it became
	// ready. Both are zero if the revision was ready at the first decision.
	created, started time.Time
	// routed is true once the revision was reachable, initialized once its initial scale was ready.
	routed, initialized bool
	// active is the time when the revision left zero or became ready after that; served is true once it became ready.
	active time.Time
	served bool
	// activating is true from leaving zero until the activation scale is ready.
	activating bool
	// idle is the time when demand ended, zero while there is demand.
	idle time.Time
	// panicked is the time when demand was last over the threshold, zero outside panic mode; panicScale is the highest
	// scale since panic mode began.
	panicked   time.Time
	panicScale int32
	// resumed is true if panic mode stands for a load that is not known yet.
	resumed bool
	delay   delay
	// cause is the cause of the previous decision.
	cause cause
}

// resume records that backends run whose load is unknown. Several backends are kept for a stable window, until their load is
// known.
func (m *memory) resume(now time.Time, backends int32) {
	if backends > 0 {
		m.active = now
		m.cause = cause{reason: reasonRunning, scale: backends}
	}
	if backends > 1 {
		m.panicked, m.panicScale, m.resumed = now, backends, true
	}
}

// decide returns the scale of a revision. It reads nothing but its arguments and changes only m. With sampled input it must be
// called once per tickInterval, because the rates bound the change of one decision.
func decide(c *config, in *input, m *memory) decision {
	m.observe(c, in)
	desired, why := in.Desired, m.cause
	if in.Activated {
		why = cause{reason: reasonPeerRequest}
	}
	if in.Sampled {
		desired, why = m.demand(c, in)
	}
	if desired < 1 && in.Waiting > 0 {
		desired, why = 1, cause{reason: reasonRequest}
	}
	if queued := queueScale(c, in); queued > desired && desired > 0 {
		desired, why = queued, cause{reason: reasonQueue, needs: queued}
	}
	if desired < 1 && in.Stale && in.Desired > 0 {
		desired, why = 1, cause{reason: reasonGatewayMissing}
	}
	if scale := m.activate(c, in, desired); scale > desired {
		desired, why = scale, cause{reason: reasonActivationScale}
	}
	floor, reason := m.floor(c, in)
	if floor > desired {
		desired, why = floor, cause{reason: reason}
	}
	if desired == 0 {
		desired, why = m.lastBackend(c, in)
	}
	if scale := withoutFailing(in, desired, floor); scale < desired {
		desired, why = scale, cause{reason: reasonFailing}
	}
	if scale := bounded(desired, c.Max); scale < desired {
		desired, why = scale, cause{reason: reasonMaxScale, needs: desired}
	}
	m.cause = why.of(desired)
	if in.Desired == 0 && desired > 0 {
		m.active, m.served = in.Now, false
	}
	d := decision{Desired: desired, Cause: m.cause, Panicking: !m.panicked.IsZero(), ExcessBurstCapacity: excessBurstCapacity(c, in)}
	if desired > 0 {
		d.Next = tickInterval
	}
	return d
}

// queueScale returns the scale that serves all waiting requests at a time while no backend is ready, at most what one decision may add.
func queueScale(c *config, in *input) int32 {
	if in.Ready > 0 || c.RPS {
		return 0
	}
	return asInt32(math.Min(math.Ceil(float64(in.Waiting)/c.Capacity), math.Ceil(c.MaxScaleUpRate)))
}

// observe records the changes of the revision since the previous decision.
func (m *memory) observe(c *config, in *input) {
	if !c.Started && m.created.IsZero() {
		m.created = in.Now
	}
	if c.Started && !m.created.IsZero() && m.started.IsZero() {
		m.started = in.Now
	}
	m.routed = m.routed || c.Reachable
	m.initialized = m.initialized || in.Ready >= bounded(c.Initial, c.Max)
	if in.Ready > 0 && !m.served {
		m.active, m.served = in.Now, true
	}
	if !m.panicked.IsZero() && in.Now.Sub(m.panicked) > c.StableWindow {
		m.calmDown()
	}
}

// calmDown ends panic mode.
func (m *memory) calmDown() { m.panicked, m.panicScale, m.resumed = time.Time{}, 0, false }

// calm reports whether panic mode may end before the stable window has passed.
func (m *memory) calm(c *config, now time.Time, panicNeeds float64) bool {
	return !m.panicked.IsZero() && !m.resumed && now.Sub(m.panicked) >= calmWindows*c.PanicWindow && panicNeeds <= float64(m.panicScale)/calmParts
}

// demand returns the scale that the averages of the windows require, and which average or rate decides.
func (m *memory) demand(c *config, in *input) (desired int32, why cause) {
	ready := math.Max(1, float64(in.Ready))
	up := math.Ceil(c.MaxScaleUpRate * ready)
	down := 0.0
	if c.Reachable {
		down = math.Floor(ready / c.MaxScaleDownRate)
	}
	// Rounding hides floating-point errors of the sum, which would require one more backend.
	needed := func(average float64) float64 { return math.Ceil(math.Round(average/c.Target*1e4) / 1e4) }
	scale := func(needed float64) int32 {
		return asInt32(math.Min(math.Max(needed, down), up))
	}
	panicNeeds := needed(in.Panic)
	if panicNeeds/ready >= c.PanicThreshold {
		m.panicked, m.resumed = in.Now, false
	}
	if m.calm(c, in.Now, panicNeeds) {
		m.calmDown()
	}
	stableNeeds := needed(in.Stable)
	desired = scale(stableNeeds)
	why = cause{reason: reasonStableAverage, average: in.Stable, needs: asInt32(stableNeeds)}
	switch {
	case desired < why.needs:
		why.reason = reasonMaxScaleUpRate
	case desired > why.needs:
		why.reason = reasonMaxScaleDownRate
	}
	if in.Stable > 0 {
		desired, why.needs = max(desired, 1), max(why.needs, 1)
	}
	if !m.panicked.IsZero() {
		m.panicScale = max(m.panicScale, desired, scale(panicNeeds))
		desired = m.panicScale
		why = cause{reason: reasonPanicAverage, average: in.Panic, needs: asInt32(panicNeeds), until: m.panicked.Add(c.StableWindow)}
	}
	if c.ScaleDownDelay > 0 {
		highest := m.delay.highest(in.Now, c.ScaleDownDelay, desired)
		if highest > desired {
			why = cause{reason: reasonScaleDownDelay, average: in.Stable, needs: asInt32(stableNeeds), until: m.delay[0].at.Add(c.ScaleDownDelay)}
		}
		desired = highest
	} else {
		m.delay = nil
	}
	if desired > 0 {
		m.idle = time.Time{}
	}
	return desired, why
}

// asInt32 returns a number of backends.
func asInt32(backends float64) int32 { return int32(math.Min(backends, math.MaxInt32)) }

// activate raises desired to the activation scale after leaving zero, until that many backends are ready, or for a stable
// window.
func (m *memory) activate(c *config, in *input, desired int32) int32 {
	switch {
	case in.Desired == 0 && desired > 0:
		m.activating = true
	case in.Ready >= bounded(c.Activation, c.Max) || in.Now.Sub(m.active) >= c.StableWindow:
		m.activating = false
	}
	if m.activating {
		return max(desired, c.Activation)
	}
	return desired
}

// floor returns the minimum scale, independent of demand, and its reason. A revision without Routes has none (serving 7.3-1), except while it
// starts for a Route.
func (m *memory) floor(c *config, in *input) (floor int32, reason string) {
	starting := !c.Started && in.Now.Sub(m.created) < c.ProgressDeadline
	settling := !m.started.IsZero() && in.Now.Sub(m.started) < c.StableWindow
	if c.Reachable || starting || settling && !m.routed {
		floor, reason = c.Min, reasonMinScale
	}
	if (starting || settling && !m.initialized) && c.Initial > floor {
		floor, reason = c.Initial, reasonInitialScale
	}
	if c.Reachable && c.Started && !c.ScaleToZero && floor < 1 {
		floor, reason = 1, reasonScaleToZeroDisabled
	}
	return floor, reason
}

// lastBackend returns 1 while the last backend of a revision without demand is kept: for a stable window after it started to
// serve, and then for the retention period.
func (m *memory) lastBackend(c *config, in *input) (desired int32, why cause) {
	if in.Desired == 0 {
		return 0, cause{reason: reasonNoRequests}
	}
	if in.Now.Sub(m.active) < c.StableWindow {
		return 1, cause{reason: reasonStableWindow, until: m.active.Add(c.StableWindow)}
	}
	if m.idle.IsZero() {
		m.idle = in.Now
	}
	if c.Reachable && in.Now.Sub(m.idle) < c.Retention {
		return 1, cause{reason: reasonRetention, until: m.idle.Add(c.Retention)}
	}
	m.idle = time.Time{}
	return 0, cause{reason: reasonNoRequests}
}

// keepers returns all reasons why a revision with backends keeps the last one, after the decision with in. It changes nothing.
func (m *memory) keepers(c *config, in *input) []cause {
	var all []cause
	if floor, reason := m.floor(c, in); floor > 0 {
		all = append(all, cause{reason: reason, scale: floor})
	}
	if in.Waiting > 0 {
		all = append(all, cause{reason: reasonRequest})
	}
	if in.Stable > 0 {
		all = append(all, cause{reason: reasonStableAverage, average: in.Stable, needs: max(1, asInt32(math.Ceil(in.Stable/c.Target)))})
	}
	if !m.panicked.IsZero() {
		all = append(all, cause{reason: reasonPanicAverage, average: in.Panic, needs: asInt32(math.Ceil(in.Panic / c.Target)), until: m.panicked.Add(c.StableWindow)})
	}
	if c.ScaleDownDelay > 0 && len(m.delay) > 0 && m.delay[0].scale > 0 {
		last := m.delay[len(m.delay)-1]
		all = append(all, cause{reason: reasonScaleDownDelay, average: in.Stable, needs: last.scale, scale: m.delay[0].scale, until: m.delay[0].at.Add(c.ScaleDownDelay)})
	}
	if m.activating {
		all = append(all, cause{reason: reasonActivationScale})
	}
	if in.Stale {
		all = append(all, cause{reason: reasonGatewayMissing})
	}
	if in.Now.Sub(m.active) < c.StableWindow {
		all = append(all, cause{reason: reasonStableWindow, until: m.active.Add(c.StableWindow)})
	}
	if c.Reachable && !m.idle.IsZero() && in.Now.Sub(m.idle) < c.Retention {
		all = append(all, cause{reason: reasonRetention, until: m.idle.Add(c.Retention)})
	}
	return all
}

// withoutFailing prevents waiting requests from starting more backends while none becomes ready.
func withoutFailing(in *input, desired, floor int32) int32 {
	if in.Failing && in.Ready == 0 {
		return min(desired, max(in.Desired, floor, 1))
	}
	return desired
}

// bounded returns scale, at most maximum unless that is 0.
func bounded(scale, maximum int32) int32 {
	if maximum > 0 {
		return min(scale, maximum)
	}
	return scale
}

// excessBurstCapacity returns decision.ExcessBurstCapacity.
func excessBurstCapacity(c *config, in *input) int32 {
	switch {
	case c.BurstCapacity == 0:
		return 0
	case c.BurstCapacity < 0:
		return -1
	}
	excess := math.Floor(float64(in.Ready)*c.Capacity - c.BurstCapacity - in.Panic)
	return int32(math.Max(math.MinInt32, math.Min(excess, math.MaxInt32)))
}
