package autoscaler

import (
	"math"
	"time"
)

// TickInterval is how often a revision with instances is decided about.
const TickInterval = 2 * time.Second

// Input is what is known of a revision at one moment.
type Input struct {
	Now time.Time
	// Stable and Panic are the averages of the metric over the two windows. Where they are not Sampled now, but at
	// some earlier moment or never, demand stays what it was decided to be.
	Stable, Panic float64
	Sampled       bool
	// Waiting is how many requests wait for an instance.
	Waiting int
	// Ready is the number of ready instances, Desired the scale that was decided before.
	Ready, Desired int32
	// Failing tells that instances which were started last do not become ready.
	Failing bool
	// Held tells that requests may be in flight which are not sampled: the last instance stays.
	Held bool
}

// Decision is what follows from an Input.
type Decision struct {
	// Desired is the number of instances to run.
	Desired int32
	// Panicking tells whether the decision is one of panic mode.
	Panicking bool
	// ExcessBurstCapacity is how many requests could come at once beyond what the instances have and the burst
	// capacity asks for; where negative, so many are missing. It is 0 without, and -1 with endless burst capacity.
	ExcessBurstCapacity int32
	// Next is when to decide again, 0 where nothing changes until a request waits or the configuration changes.
	Next time.Duration
}

// Memory is what later decisions about a revision need to know of earlier ones. The zero Memory is that of a
// revision that nothing was decided about.
type Memory struct {
	// created is when a revision that was not ready before was first decided about, started when it was ready.
	// Both are zero for one that was started before.
	created, started time.Time
	// routed tells that the revision was reachable, initialized that its initial scale was ready.
	routed, initialized bool
	// active is when the revision left zero, or got ready after that; served tells that it got ready.
	active time.Time
	served bool
	// activating tells that the activation scale was not ready since the revision left zero.
	activating bool
	// idle is when the demand ended, zero while there is some.
	idle time.Time
	// panicked is when demand was last over the threshold, zero outside panic mode; panicScale is the highest
	// scale of this panic.
	panicked   time.Time
	panicScale int32
	delay      delay
}

// Adopt tells of instances that run without that this Memory knows of their load: several of them are kept
// for a stable window, since what they do shows only by then.
func (m *Memory) Adopt(now time.Time, instances int32) {
	if instances > 0 {
		m.active = now
	}
	if instances > 1 {
		m.panicked, m.panicScale = now, instances
	}
}

// Decide returns how many instances a revision is to run. It reads no clock and nothing else but its arguments,
// and changes only m. Where the input is sampled it is to be called once each TickInterval, since what one
// decision changes is bounded by a factor.
func Decide(c *Config, in *Input, m *Memory) Decision {
	m.observe(c, in)
	desired := in.Desired
	if in.Sampled {
		desired = m.demand(c, in)
	}
	if in.Waiting > 0 || in.Held && in.Desired > 0 {
		desired = max(desired, 1)
	}
	desired = m.activate(c, in, desired)
	floor := m.floor(c, in)
	if desired = max(desired, floor); desired == 0 {
		desired = m.lastInstance(c, in)
	}
	desired = withoutFailing(in, desired, floor)
	desired = bounded(desired, c.Max)
	if in.Desired == 0 && desired > 0 {
		m.active, m.served = in.Now, false
	}
	d := Decision{Desired: desired, Panicking: !m.panicked.IsZero(), ExcessBurstCapacity: excessBurstCapacity(c, in)}
	if desired > 0 {
		d.Next = TickInterval
	}
	return d
}

// observe notes what happened to the revision since the previous decision.
func (m *Memory) observe(c *Config, in *Input) {
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

// demand is the scale that the requests of the windows ask for.
func (m *Memory) demand(c *Config, in *Input) int32 {
	ready := math.Max(1, float64(in.Ready))
	up := math.Ceil(c.MaxScaleUpRate * ready)
	down := 0.0
	if c.Reachable {
		down = math.Floor(ready / c.MaxScaleDownRate)
	}
	// Rounding keeps what is one instance's target, but for an error of the sum, from asking for two.
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

// activate raises the scale of a revision that requests bring back from zero, until so many instances are ready,
// or a stable window has passed in which they do not become so.
func (m *Memory) activate(c *Config, in *Input, desired int32) int32 {
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

// floor is the scale that is kept whatever the demand. What no Route refers to needs none (serving 7.3-1),
// unless it is to become ready for a Route.
func (m *Memory) floor(c *Config, in *Input) int32 {
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

// lastInstance is 1 while the last instance of a revision without demand is kept: for a stable window since it
// began to serve, and then for the retention period, which is for requests that may come.
func (m *Memory) lastInstance(c *Config, in *Input) int32 {
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

// withoutFailing keeps requests that wait for instances which never become ready from starting more of them.
func withoutFailing(in *Input, desired, floor int32) int32 {
	if in.Failing && in.Ready == 0 {
		return min(desired, max(in.Desired, floor, 1))
	}
	return desired
}

func bounded(scale, maximum int32) int32 {
	if maximum > 0 {
		return min(scale, maximum)
	}
	return scale
}

func excessBurstCapacity(c *Config, in *Input) int32 {
	switch {
	case c.BurstCapacity == 0:
		return 0
	case c.BurstCapacity < 0:
		return -1
	}
	excess := math.Floor(float64(in.Ready)*c.Capacity - c.BurstCapacity - in.Panic)
	return int32(math.Max(math.MinInt32, math.Min(excess, math.MaxInt32)))
}
