package autoscaler

import (
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// registry holds all revisions, and queues those with changes that Run has not handled yet. Its methods may be called
// concurrently.
type registry struct {
	// changed holds an element while the queue is not empty or a report is requested.
	changed chan struct{}

	// mu guards the fields below and the fields of revisions that say so. It is held briefly only.
	mu        sync.Mutex
	revisions map[routing.Key]*revision
	queue     []*revision
	// reportNow is true if the leader needs a report before the next tick.
	resolveAll, reportNow bool
	// since is when this replica began to decide.
	since time.Time

	// spare is the slice that was the queue before. Owned by Run.
	spare []*revision
}

// revision is one revision with the decisions about it.
type revision struct {
	key routing.Key

	// The fields below are guarded by registry.mu. spec is nil while only the workload has the revision.
	spec *routing.Revision
	// state is the state in the workload, observed is true if it changed since Run handled the revision.
	state    workload.State
	observed bool
	// queued is true while the revision is in the queue, requested if a request waits for a backend, removed if the
	// revision was removed or replaced.
	queued, requested, removed bool
	// desired is the scale of the latest decision. Only Run changes it.
	desired int32
	stats   stats
	// history is nil until something happens.
	history *history
	// announced is the time of the latest activation while another replica led.
	announced time.Time

	// scaling is owned by Run.
	scaling
}

// change is the input of a revision since it was last handled. The spec is nil if the revision is removed or not set yet.
type change struct {
	spec      *routing.Revision
	state     *workload.State
	requested bool
}

func newRegistry() *registry {
	return &registry{changed: make(chan struct{}, 1), revisions: map[routing.Key]*revision{}}
}

// set adds or updates a revision.
func (g *registry) set(spec *routing.Revision) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.revisions[spec.Key]
	if r != nil && r.spec != nil && r.spec.UID != spec.UID {
		state := r.state
		g.delete(r)
		r = nil
		// The workload may have published the state of the new revision earlier.
		if state.UID == spec.UID {
			r = g.insert(spec.Key)
			r.state, r.observed = state, true
		}
	}
	if r == nil {
		r = g.insert(spec.Key)
	}
	r.spec = spec
	g.enqueue(r)
}

// remove removes a revision.
func (g *registry) remove(key routing.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.revisions[key]; r != nil {
		g.delete(r)
	}
}

// observe records the state of a revision in the workload, zero if it was removed there. If reportAtZero is true, a scale
// that reaches zero requests a report.
func (g *registry) observe(key routing.Key, state workload.State, reportAtZero bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.revisions[key]
	removed := state.UID == ""
	if r == nil && !removed {
		r = g.insert(key)
	}
	switch {
	case r == nil:
	case removed && r.spec == nil:
		delete(g.revisions, key)
	default:
		if reportAtZero && r.state.Desired > 0 && state.Desired == 0 {
			g.requestReport()
		}
		r.state, r.observed = state, true
		g.enqueue(r)
	}
}

// request enqueues a revision at zero for which a request waits.
func (g *registry) request(key routing.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r := g.revisions[key]; r != nil {
		g.requestBackend(r)
	}
}

// requestReported enqueues the revisions at zero that another replica reported requests of.
func (g *registry) requestReported(usages []Usage) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range usages {
		u := &usages[i]
		if r := g.revisions[u.Key]; r != nil && r.spec != nil && r.spec.UID == u.UID {
			g.requestBackend(r)
		}
	}
}

// requestBackend enqueues a revision if it is at zero. mu is held.
func (g *registry) requestBackend(r *revision) {
	if r.desired == 0 && !r.requested {
		r.requested = true
		g.enqueue(r)
	}
}

// settingsChanged enqueues all revisions, to resolve their configuration again.
func (g *registry) settingsChanged() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.resolveAll = true
	for _, r := range g.revisions {
		g.enqueue(r)
	}
}

// begin sets the time when this replica begins to decide. Called by Run.
func (g *registry) begin(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = now
}

// reset discards all decisions and enqueues all revisions as if they were new. Called by Run.
func (g *registry) reset(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = now
	for _, r := range g.revisions {
		r.scaling.reset()
		r.history, r.stats.decision, r.stats.state = nil, decision{}, nil
		r.desired, r.observed = 0, r.observed || r.state.UID != ""
		g.enqueue(r)
	}
}

// dequeueAll empties the queue, and reports whether the settings changed since the previous call. The slice is valid until
// the next call. Called by Run.
func (g *registry) dequeueAll() (revisions []*revision, settingsChanged bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	revisions, settingsChanged = g.queue, g.resolveAll
	g.queue, g.spare, g.resolveAll = g.spare[:0], revisions, false
	return revisions, settingsChanged
}

// changes returns the input of a dequeued revision and clears it.
func (g *registry) changes(r *revision) change {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.queued = false
	if r.removed || r.spec == nil {
		return change{}
	}
	c := change{spec: r.spec, requested: r.requested}
	// The workload may still publish states of the previous revision with the same name, or already of the next one.
	if r.observed && (r.state.UID == r.spec.UID || r.state.UID == "") {
		state := r.state
		c.state = &state
	}
	r.observed, r.requested = false, false
	return c
}

// setDesired sets the scale of a revision.
func (g *registry) setDesired(r *revision, desired int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.desired = desired
}

// publish sets the scale of a revision, its metrics and its explanation to a decision.
func (g *registry) publish(r *revision, in *input, d decision) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.desired = d.Desired
	r.stats.ready, r.stats.decision = r.running.Ready, d
	r.stats.stable, r.stats.panicking = r.stable, r.panicking
	r.stats.target, r.stats.rps = r.config.Target, r.config.RPS
	r.keep(in, d)
}

// record records a decision for explanations.
func (g *registry) record(r *revision, in *input, d *decision, before int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.record(in, d, before)
}

// countChange counts a change of the scale.
func (g *registry) countChange(r *revision, before int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.desired > before {
		r.stats.ups++
	} else {
		r.stats.downs++
	}
}

// isRemoved reports whether a revision was removed or replaced.
func (g *registry) isRemoved(r *revision) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return r.removed
}

// reportRequested reports whether the leader needs a report before the next tick.
func (g *registry) reportRequested() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reportNow
}

// requestReport makes Run report before the next tick. mu is held.
func (g *registry) requestReport() {
	g.reportNow = true
	g.wake()
}

// insert adds an empty revision. mu is held.
func (g *registry) insert(key routing.Key) *revision {
	r := &revision{key: key}
	g.revisions[key] = r
	return r
}

// delete removes a revision and enqueues it, so that Run stops scaling it. mu is held.
func (g *registry) delete(r *revision) {
	r.removed = true
	delete(g.revisions, r.key)
	g.enqueue(r)
}

// enqueue queues a revision for Run. mu is held.
func (g *registry) enqueue(r *revision) {
	if !r.queued {
		r.queued = true
		g.queue = append(g.queue, r)
		g.wake()
	}
}

// wake makes Run continue at once.
func (g *registry) wake() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}
