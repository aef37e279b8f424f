package autoscaler

import (
	"context"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// scaler is the part of a Loop that acts while this replica leads: it samples revisions, decides and applies the decisions.
// It is owned by Run.
type scaler struct {
	options  *Options
	registry *registry
	peers    *peerUsage
	// ticking are the revisions that are sampled without a change.
	ticking []*revision
	// tick is true if the next sample also is a tick.
	tick bool
}

// scaling is the state of one revision in the scaler. The zero value is a revision that was never handled.
type scaling struct {
	// resolved is the spec that config was resolved from.
	resolved *routing.Revision
	config   config
	memory   memory
	// window is nil for a revision at zero. sampled is the time of the latest sample, stable and panicking are the
	// averages of the latest tick.
	window            *window
	sampled           time.Time
	stable, panicking average
	// running is the state of this revision in the workload. resumable is true if the revision may run backends that this
	// process did not request.
	running   workload.State
	resumable bool
	// requestedScale is the scale that was last requested from the workload and is not observed yet, or nil.
	requestedScale *int32
	// stale is true if a replica that stopped reporting last had requests.
	stale bool
	// activated is the time when a request last scaled the revision from zero.
	activated time.Time
	// failed is true if the workload rejected the latest scale, listed if the revision is in scaler.ticking.
	failed, listed bool
}

// active reports whether any revision needs samples.
func (s *scaler) active() bool { return len(s.ticking) > 0 }

// restartTicks makes the second of the next two samples a tick.
func (s *scaler) restartTicks() { s.tick = false }

// reset removes all revisions from the list of ticking ones, before registry.reset.
func (s *scaler) reset() {
	clear(s.ticking)
	s.ticking = s.ticking[:0]
}

// reset discards the decisions about a revision: when leadership changes, the running backends become the scale to start
// from, and stay for a stable window, because the need is unknown until the gateways were sampled for that long.
func (s *scaling) reset() {
	*s = scaling{config: s.config, running: s.running, sampled: s.sampled, stale: s.stale}
}

// sampleAll samples the ticking revisions, and decides about them every other time.
func (s *scaler) sampleAll(ctx context.Context) {
	now := s.options.Clock.Now()
	kept := s.ticking[:0]
	for _, r := range s.ticking {
		if ctx.Err() == nil && r.needsTicks() {
			s.step(ctx, r, now)
		}
		if r.listed = r.needsTicks(); r.listed {
			kept = append(kept, r)
		}
	}
	clear(s.ticking[len(kept):])
	s.ticking = kept
	s.tick = !s.tick
}

// handle decides about a changed revision, without waiting for a tick.
func (s *scaler) handle(ctx context.Context, r *revision, now time.Time, settingsChanged bool) {
	changes := s.registry.changes(r)
	if changes.spec == nil {
		r.resolved = nil
		return
	}
	handledBefore := r.resolved != nil
	if r.resolved != changes.spec || settingsChanged {
		r.resolved, r.config = changes.spec, resolve(changes.spec, s.options.Settings())
	}
	if !handledBefore {
		r.resumable = true
	}
	appeared, byPeer := false, false
	if changes.state != nil {
		appeared = r.running.UID == "" && changes.state.UID != ""
		r.running = *changes.state
		byPeer = s.activatedByPeer(r)
		r.resumable = r.resumable || byPeer
		s.resume(r, now)
	}
	in := r.input(now)
	in.Activated = byPeer && handledBefore
	if changes.requested || !handledBefore {
		in.Waiting = s.sample(r, now)
	}
	if changes.requested {
		in.Waiting = max(in.Waiting, 1)
	}
	before := r.desired
	// A scale that was requested before the workload had the revision had no effect.
	s.decide(ctx, r, &in, appeared)
	if changes.requested && before == 0 && r.desired > 0 {
		r.activated = now
	}
	if r.needsTicks() && !r.listed {
		r.listed = true
		s.ticking = append(s.ticking, r)
	}
}

// resume makes the running backends, which an earlier process or another leader started, the scale to start from.
func (s *scaler) resume(r *revision, now time.Time) {
	running := max(r.running.Desired, r.running.Ready)
	if r.resumable && running > r.desired {
		s.registry.setDesired(r, running)
		r.memory.resume(now, running)
	}
	r.resumable = false
}

// activatedByPeer reports whether another replica scaled a revision from zero because a request waits there.
func (s *scaler) activatedByPeer(r *revision) bool {
	if !s.options.replicated() {
		return false
	}
	if r.requestedScale != nil {
		if r.running.Desired != *r.requestedScale {
			// The workload may not have applied the request yet.
			return false
		}
		r.requestedScale = nil
	}
	return r.desired == 0 && r.running.Desired > 0
}

// step samples a revision, and decides about it at a tick, after a failure, or while requests wait for the first backend.
func (s *scaler) step(ctx context.Context, r *revision, now time.Time) {
	if r.window == nil {
		r.window = newWindow(r.config.StableWindow)
	} else if r.window.length() != r.config.StableWindow {
		r.window = r.window.resized(r.config.StableWindow)
	}
	waiting := s.sample(r, now)
	if !s.tick && !r.failed && (r.running.Ready > 0 || waiting == 0) {
		return
	}
	sampled := s.tick && !r.activating(now) && r.average(now)
	in := r.input(now)
	in.Waiting, in.Sampled, in.Stale = waiting, sampled, r.stale
	s.decide(ctx, r, &in, true)
}

// sample samples a revision at all gateways and returns the number of waiting requests. The time that a revision spent at
// zero does not count.
func (s *scaler) sample(r *revision, now time.Time) (waiting int) {
	sample, _ := s.options.Sample(r.key, now)
	if s.options.replicated() {
		var peers Sample
		peers, r.stale = s.peers.sum(r.key, r.resolved.UID, now)
		sample.Concurrency += peers.Concurrency
		sample.RequestsPerSecond += peers.RequestsPerSecond
		sample.Waiting += peers.Waiting
	}
	if r.window != nil {
		// A sample after a pause of the process or the machine weighs no more than others.
		r.window.Add(now, min(now.Sub(r.sampled), tickInterval), sample)
	}
	r.sampled = now
	return sample.Waiting
}

// decide makes a decision and applies it if the scale changed, or if retry is true and the workload is not known to have
// the scale.
func (s *scaler) decide(ctx context.Context, r *revision, in *input, retry bool) {
	before := r.desired
	d := decide(&r.config, in, &r.memory)
	s.registry.publish(r, in, d)
	if d.Desired == 0 && before > 0 {
		// From now on Activate has an effect. A request that called it earlier is sampled here.
		if in.Waiting = s.sample(r, in.Now); in.Waiting > 0 {
			in.Desired, in.Sampled = 0, false
			d = decide(&r.config, in, &r.memory)
			s.registry.publish(r, in, d)
		}
	}
	s.registry.record(r, in, &d, before)
	if d.Desired != before {
		s.registry.countChange(r, before)
		s.options.Logger.V(2).Info("Changed scale", "revision", r.key, "from", before, "to", d.Desired, "ready", in.Ready,
			"panic", d.Panicking, "stableAverage", in.Stable, "panicAverage", in.Panic, "waiting", in.Waiting)
	}
	if d.Desired != before || retry && (r.failed || r.running.Desired != d.Desired) {
		s.apply(ctx, r)
	}
	if d.Next == 0 {
		r.window, r.stable, r.panicking = nil, average{}, average{}
	}
}

// apply requests the scale of the latest decision from the workload. The next step retries a failure.
func (s *scaler) apply(ctx context.Context, r *revision) {
	if s.registry.isRemoved(r) || !s.options.leading() {
		return
	}
	r.requestedScale = nil
	if s.options.replicated() && r.running.Desired != r.desired {
		r.requestedScale = new(r.desired)
	}
	err := s.options.Scale(ctx, r.key, r.desired)
	if err != nil && !r.failed {
		s.options.Logger.Error(err, "Failed to scale revision; retrying", "revision", r.key, "desired", r.desired)
	}
	r.failed = err != nil
}

// input returns the input of a decision, with the averages of the latest tick.
func (r *revision) input(now time.Time) input {
	in := input{
		Now:     now,
		Stable:  r.stable.Concurrency,
		Panic:   r.panicking.Concurrency,
		Desired: r.desired,
		Ready:   r.running.Ready,
		Failing: r.running.Failure != nil,
		Stale:   r.stale,
	}
	if r.config.RPS {
		in.Stable, in.Panic = r.stable.RequestsPerSecond, r.panicking.RequestsPerSecond
	}
	return in
}

// needsTicks reports whether a revision is sampled without a change.
func (r *revision) needsTicks() bool {
	return r.resolved != nil && (r.desired > 0 || r.failed || r.requestedScale != nil)
}

// activating reports whether the first backend after zero still has time to start, one tick: until then the number of waiting requests decides
// (queueScale), not their averages.
func (s *scaling) activating(now time.Time) bool {
	return s.running.Ready == 0 && now.Sub(s.activated) < tickInterval
}

// average averages the samples of both windows, and reports whether any exist.
func (s *scaling) average(now time.Time) (sampled bool) {
	s.stable, sampled = s.window.average(now, s.config.StableWindow)
	s.panicking, _ = s.window.average(now, s.config.PanicWindow)
	return sampled
}
