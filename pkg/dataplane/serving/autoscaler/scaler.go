package autoscaler

import (
	"context"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// revision is what a Loop knows of one revision.
type revision struct {
	key routing.Key

	// The fields below are guarded by Loop.mu. spec is nil while only the runtime knows the revision.
	spec     *routing.Revision
	state    workload.State
	observed bool
	// queued tells that the revision is in the inbox, requested that a request waits at it, gone that it was
	// forgotten or replaced.
	queued, requested, gone bool
	// desired is the scale that was decided last. Only Run changes it.
	desired int32
	report  report
	// announced is when scale was last asked for while another replica led.
	announced time.Time

	// The fields below belong to Loop.Run. resolved is the spec that config comes from.
	resolved *routing.Revision
	config   Config
	memory   Memory
	// window is nil for a revision at rest. sampled is when the latest sample was taken, stable and panicking are
	// the averages of the latest tick.
	window            *Window
	sampled           time.Time
	stable, panicking Average
	// running is the state of this very revision in the runtime, adoptable that it may run instances which
	// this process did not ask for.
	running   workload.State
	adoptable bool
	// asked is the scale that the runtime was last asked for and is not known to have yet, or nil. held tells that a
	// gateway which cannot be reached last had requests.
	asked *int32
	held  bool
	// activated is when a request last had it scaled from zero.
	activated time.Time
	// failed tells that the runtime could not be told what was decided, listed that the revision is in
	// Loop.active.
	failed, listed bool
}

// handle takes note of what a revision was told, and decides what follows from that alone.
func (l *Loop) handle(ctx context.Context, r *revision, now time.Time, resettled bool) {
	told := l.take(r)
	if told.spec == nil {
		r.resolved = nil
		return
	}
	known := r.resolved != nil
	if r.resolved != told.spec || resettled {
		r.resolved, r.config = told.spec, Resolve(told.spec, l.options.Settings())
	}
	if !known {
		r.adoptable = true
	}
	again := false
	if told.state != nil {
		// What was asked for before the runtime knew the revision had no effect.
		again = r.running.UID == "" && told.state.UID != ""
		r.running = *told.state
		if l.awakened(r) {
			r.adoptable = true
		}
		l.adopt(r, now)
	}
	in := r.input(now)
	if told.requested || !known {
		in.Waiting = l.waiting(r, now)
	}
	if told.requested {
		in.Waiting = max(in.Waiting, 1)
	}
	before := r.desired
	l.decide(ctx, r, &in, again)
	if told.requested && before == 0 && r.desired > 0 {
		r.activated = now
	}
	if r.needsTicks() && !r.listed {
		r.listed = true
		l.active = append(l.active, r)
	}
}

// told is what a revision was told since it was last handled. Its spec is nil for one that is forgotten, or not
// known yet.
type told struct {
	spec      *routing.Revision
	state     *workload.State
	requested bool
}

// take empties the inbox of a revision.
func (l *Loop) take(r *revision) told {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.queued = false
	if r.gone || r.spec == nil {
		return told{}
	}
	t := told{spec: r.spec, requested: r.requested}
	// The runtime may still speak of the revision that had the name before, or already of the next.
	if r.observed && (r.state.UID == r.spec.UID || r.state.UID == "") {
		state := r.state
		t.state = &state
	}
	r.observed, r.requested = false, false
	return t
}

// adopt makes the instances that the runtime has, from before this process or by another leader, the scale to
// begin with.
func (l *Loop) adopt(r *revision, now time.Time) {
	running := max(r.running.Desired, r.running.Ready)
	if r.adoptable && running > r.desired {
		l.mu.Lock()
		r.desired = running
		l.mu.Unlock()
		r.memory.Adopt(now, running)
	}
	r.adoptable = false
}

// awakened tells whether another replica has scaled a revision from zero, as a request waits there.
func (l *Loop) awakened(r *revision) bool {
	if l.options.Leading == nil {
		return false
	}
	if r.asked != nil {
		if r.running.Desired != *r.asked {
			// It may be that the runtime has not come to it.
			return false
		}
		r.asked = nil
	}
	return r.desired == 0 && r.running.Desired > 0
}

// step samples a revision, and decides about it if it is its turn.
func (l *Loop) step(ctx context.Context, r *revision, now time.Time, tick bool) {
	if r.window == nil {
		r.window = NewWindow(r.config.StableWindow)
	} else if r.window.Length() != r.config.StableWindow {
		r.window = r.window.Resized(r.config.StableWindow)
	}
	waiting := l.waiting(r, now)
	if !tick && !r.failed {
		return
	}
	sampled := tick && !r.activating(now) && r.measure(now)
	in := r.input(now)
	in.Waiting, in.Sampled, in.Held = waiting, sampled, r.held
	l.decide(ctx, r, &in, true)
}

// activating tells whether the first instance after zero still has a tick's time to begin: how many more there
// should be shows when it answers, not by what piled up before.
func (r *revision) activating(now time.Time) bool {
	return r.running.Ready == 0 && now.Sub(r.activated) < TickInterval
}

// input is what is known of a revision, with the requests of the latest tick.
func (r *revision) input(now time.Time) Input {
	in := Input{
		Now:     now,
		Stable:  r.stable.Concurrency,
		Panic:   r.panicking.Concurrency,
		Desired: r.desired,
		Ready:   r.running.Ready,
		Failing: r.running.Failure != nil,
		Held:    r.held,
	}
	if r.config.RPS {
		in.Stable, in.Panic = r.stable.RequestsPerSecond, r.panicking.RequestsPerSecond
	}
	return in
}

// measure averages the requests of the latest time, and returns false where there is no sample.
func (r *revision) measure(now time.Time) bool {
	var sampled bool
	r.stable, sampled = r.window.Average(now, r.config.StableWindow)
	r.panicking, _ = r.window.Average(now, r.config.PanicWindow)
	return sampled
}

// waiting samples a revision and returns how many requests wait at it. The time that a revision was at rest
// does not count.
func (l *Loop) waiting(r *revision, now time.Time) int {
	sample, _ := l.options.Sample(r.key, now)
	if l.options.Leading != nil {
		var others Sample
		others, r.held = l.others.sum(r.key, r.resolved.UID, now)
		sample.Concurrency += others.Concurrency
		sample.RequestsPerSecond += others.RequestsPerSecond
		sample.Waiting += others.Waiting
	}
	if r.window != nil {
		// After a pause, of this process or the machine, a sample is not worth more than others.
		r.window.Add(now, min(now.Sub(r.sampled), TickInterval), sample)
	}
	r.sampled = now
	return sample.Waiting
}

// needsTicks tells whether a revision is to be looked at without being told anything.
func (r *revision) needsTicks() bool {
	return r.resolved != nil && (r.desired > 0 || r.failed || r.asked != nil)
}

// decide decides, and has the runtime do it: where something changed, or where again is set and the runtime is
// not known to have the scale that it should.
func (l *Loop) decide(ctx context.Context, r *revision, in *Input, again bool) {
	before := r.desired
	d := Decide(&r.config, in, &r.memory)
	l.publish(r, d)
	if d.Desired == 0 && before > 0 {
		// From here on Activate counts. A request that came before it did is seen now.
		if in.Waiting = l.waiting(r, in.Now); in.Waiting > 0 {
			in.Desired, in.Sampled = 0, false
			d = Decide(&r.config, in, &r.memory)
			l.publish(r, d)
		}
	}
	if d.Desired != before {
		l.count(r, before)
		l.options.Logger.V(2).Info("Scaling", "revision", r.key, "from", before, "to", d.Desired, "ready", in.Ready,
			"panic", d.Panicking, "stableAverage", in.Stable, "panicAverage", in.Panic, "waiting", in.Waiting)
	}
	if d.Desired != before || again && (r.failed || r.running.Desired != d.Desired) {
		l.apply(ctx, r)
	}
	if d.Next == 0 {
		r.window, r.stable, r.panicking = nil, Average{}, Average{}
	}
}

// apply asks the runtime for the scale that was decided. Where it fails, the next step tries again.
func (l *Loop) apply(ctx context.Context, r *revision) {
	l.mu.Lock()
	gone := r.gone
	l.mu.Unlock()
	if gone {
		return
	}
	if !l.leading() {
		return
	}
	r.asked = nil
	if l.options.Leading != nil && r.running.Desired != r.desired {
		r.asked = new(r.desired)
	}
	err := l.options.Scale(ctx, r.key, r.desired)
	if err != nil && !r.failed {
		l.options.Logger.Error(err, "Scaling failed, trying again", "revision", r.key, "instances", r.desired)
	}
	r.failed = err != nil
}
