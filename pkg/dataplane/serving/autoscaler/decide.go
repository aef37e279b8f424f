package autoscaler

import (
	"math"
	"time"
)

// tickInterval is the interval between decisions about a revision with backends.
const tickInterval = 2 * time.Second

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
	// Failing is true if the most recently started backends do not become ready.
	Failing bool
	// Stale is true if a gateway that stopped reporting may have requests in flight: the last backend stays.
	Stale bool
}

// decision is the result of decide.
type decision struct {
	// Desired is the number of backends to run.
	Desired int32
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
	delay      delay
}

// resume records that backends run whose load is unknown. Several backends are kept for a stable window, until their load is
// known.
func (m *memory) resume(now time.Time, backends int32) {
	if backends > 0 {
		m.active = now
	}
	if backends > 1 {
		m.panicked, m.panicScale = now, backends
	}
}

// decide returns the scale of a revision. It reads nothing but its arguments and changes only m. With sampled input it must be
// called once per tickInterval, because the rates bound the change of one decision.
func decide(c *config, in *input, m *memory) decision {
	m.observe(c, in)
	desired := in.Desired
	if in.Sampled {
		desired = m.demand(c, in)
	}
	if in.Waiting > 0 || in.Stale && in.Desired > 0 {
		desired = max(desired, 1)
	}
	desired = m.activate(c, in, desired)
	floor := m.floor(c, in)
	if desired = max(desired, floor); desired == 0 {
		desired = m.lastBackend(c, in)
	}
	desired = withoutFailing(in, desired, floor)
	desired = bounded(desired, c.Max)
	if in.Desired == 0 && desired > 0 {
		m.active, m.served = in.Now, false
	}
	d := decision{Desired: desired, Panicking: !m.panicked.IsZero(), ExcessBurstCapacity: excessBurstCapacity(c, in)}
	if desired > 0 {
		d.Next = tickInterval
	}
	return d
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
		m.panicked, m.panicScale = time.Time{}, 0
	}
}

// demand returns the scale that the averages of the windows require.
func (m *memory) demand(c *config, in *input) int32 {
	ready := math.Max(1, float64(in.Ready))
	up := math.Ceil(c.MaxScaleUpRate * ready)
	down := 0.0
	if c.Reachable {
		down = math.Floor(ready / c.MaxScaleDownRate)
	}
	// Rounding hides floating-point errors of the sum, which would require one more backend.
	needed := func(average float64) float64 { return math.Ceil(math.Round(average/c.Target*1e4) / 1e4) }
	scale := func(needed float64) int32 {
		return int32(math.Min(math.Min(math.Max(needed, down), up), math.MaxInt32))
	}
	panicNeeds := needed(in.Panic)
	if panicNeeds/ready >= c.PanicThreshold {
		m.panicked = in.Now
	}
	desired := scale(needed(in.Stable))
	if in.Stable > 0 {
		desired = max(desired, 1)
	}
	if !m.panicked.IsZero() {
		m.panicScale = max(m.panicScale, desired, scale(panicNeeds))
		desired = m.panicScale
	}
	if c.ScaleDownDelay > 0 {
		desired = m.delay.highest(in.Now, c.ScaleDownDelay, desired)
	} else {
		m.delay = nil
	}
	if desired > 0 {
		m.idle = time.Time{}
	}
	return desired
}

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

// floor returns the minimum scale, independent of demand. A revision without Routes has none (serving 7.3-1), except while it
// starts for a Route.
func (m *memory) floor(c *config, in *input) int32 {
	starting := !c.Started && in.Now.Sub(m.created) < c.ProgressDeadline
	settling := !m.started.IsZero() && in.Now.Sub(m.started) < c.StableWindow
	var floor int32
	if c.Reachable || starting || settling && !m.routed {
		floor = c.Min
	}
	if starting || settling && !m.initialized {
		floor = max(floor, c.Initial)
	}
	if c.Reachable && c.Started && !c.ScaleToZero {
		floor = max(floor, 1)
	}
	return floor
}

// lastBackend returns 1 while the last backend of a revision without demand is kept: for a stable window after it started to
// serve, and then for the retention period.
func (m *memory) lastBackend(c *config, in *input) int32 {
	if in.Desired == 0 {
		return 0
	}
	if in.Now.Sub(m.active) < c.StableWindow {
		return 1
	}
	if m.idle.IsZero() {
		m.idle = in.Now
	}
	if c.Reachable && in.Now.Sub(m.idle) < c.Retention {
		return 1
	}
	m.idle = time.Time{}
	return 0
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
