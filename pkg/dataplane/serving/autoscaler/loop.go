package autoscaler

import (
	"context"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// sampleInterval is how often a revision with instances is sampled: at each tick and once between.
const sampleInterval = TickInterval / 2

// Options are what a Loop needs. All are required, but those for several replicas.
type Options struct {
	// Settings returns the operator's choices of now.
	Settings func() *settings.Settings
	// Scale asks the runtime for a number of instances. It is called by one goroutine, and again at the next
	// sample after an error, so that it should not wait for long.
	Scale func(ctx context.Context, revision routing.Key, instances int32) error
	// Sample returns what happened at a revision since the previous call, and false where the gateway does not
	// know it, which is as if it had no requests. It is called by one goroutine. A request must be counted as
	// waiting before Activate is called for it.
	Sample func(revision routing.Key, now time.Time) (Sample, bool)
	Clock  clock.WithTicker
	Logger klog.Logger

	// Leading tells whether this replica decides. Nil means that there is no other one, and that the fields below
	// have no effect; else all are required.
	Leading func() bool
	// Members are the replicas whose reports count.
	Members *membership.View
	// Report returns what the gateway saw since the previous call, see Report.Usages. It is called, by one goroutine,
	// only while this replica does not lead; Sample only while it does.
	Report func(now time.Time) []Usage
	// Send tells the replica that leads, see Report.Post. It is called by one goroutine, and not longer than a second.
	Send func(ctx context.Context, report *Report) error
	// ActivateNow has the runtime run an instance of a revision that has none: a request waits, and another replica
	// leads. It must not block.
	ActivateNow func(revision routing.Key)
}

// Loop decides about all revisions and applies what it decides. Its methods may be called concurrently and do
// not block; what they say takes effect while Run runs. Only revisions that have or should have instances cost
// anything over time. As a metrics.StableCollector it tells what it decided, see its metrics' descriptions.
type Loop struct {
	metrics.BaseStableCollector
	descriptions descriptions
	options      Options
	// wake has an element when there is something in the inbox.
	wake chan struct{}

	// mu guards the fields below and those of revisions that say so. It is held for moments only.
	mu        sync.Mutex
	revisions map[routing.Key]*revision
	inbox     []*revision
	// resettled tells that the settings changed, urgent that a report is to be sent at once.
	resettled, urgent bool

	// others have a lock of their own.
	others others

	// The fields below belong to Run.
	active []*revision
	// spare is the slice that was the inbox before.
	spare []*revision
	tick  bool
	// leads tells whether the replica led when it was last looked at, unsent that the latest report was not sent.
	leads, unsent bool
}

// New returns a Loop, to be started by Run.
func New(options Options) *Loop {
	l := &Loop{
		options:      options,
		descriptions: describe(),
		wake:         make(chan struct{}, 1),
		revisions:    map[routing.Key]*revision{},
		others:       others{members: options.Members, reports: map[string]*reported{}},
		leads:        options.Leading == nil,
	}
	if options.Members != nil {
		options.Members.Subscribe(l.others.follow)
	}
	return l
}

// SetRevision makes a revision known, or tells what it wants now. One of another UID replaces that of the same
// name.
func (l *Loop) SetRevision(spec *routing.Revision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.revisions[spec.Key]
	if r != nil && r.spec != nil && r.spec.UID != spec.UID {
		state := r.state
		l.forget(r)
		r = nil
		// The runtime may have been told of the new one before.
		if state.UID == spec.UID {
			r = l.insert(spec.Key)
			r.state, r.observed = state, true
		}
	}
	if r == nil {
		r = l.insert(spec.Key)
	}
	r.spec = spec
	l.enqueue(r)
}

// DeleteRevision forgets a revision. Ending its instances is up to whoever removes it from the runtime.
func (l *Loop) DeleteRevision(key routing.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.revisions[key]; r != nil {
		l.forget(r)
	}
}

// Observe tells the newest state of a revision in the runtime, and the zero State when it is gone there. It is
// meant for workload.Subscribe, and keeps states of revisions that are not known yet.
func (l *Loop) Observe(key routing.Key, state workload.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.revisions[key]
	gone := state.UID == ""
	if r == nil && !gone {
		r = l.insert(key)
	}
	switch {
	case r == nil:
	case gone && r.spec == nil:
		delete(l.revisions, key)
	default:
		if r.state.Desired > 0 && state.Desired == 0 && l.options.Leading != nil {
			// Requests may have begun to wait before.
			l.hurry()
		}
		r.state, r.observed = state, true
		l.enqueue(r)
	}
}

// Activate tells that a request waits at a revision without a ready instance. Only where no instance should
// run does it have an effect: then the revision scales up at once, by one decision, however often Activate is
// called meanwhile. Where another replica leads, it has Options.ActivateNow called and is reported at once.
func (l *Loop) Activate(key routing.Key) {
	if !l.leading() {
		l.mu.Lock()
		r := l.revisions[key]
		now := r != nil && l.announce(r)
		l.mu.Unlock()
		if now {
			l.options.ActivateNow(key)
		}
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.revisions[key]; r != nil && r.desired == 0 && !r.requested {
		r.requested = true
		l.enqueue(r)
	}
}

// SettingsChanged has the settings read anew.
func (l *Loop) SettingsChanged() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resettled = true
	for _, r := range l.revisions {
		l.enqueue(r)
	}
}

// Run decides and applies until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	var ticker clock.Ticker
	defer func() {
		if ticker != nil {
			ticker.Stop()
		}
	}()
	for {
		l.turn()
		l.receive(ctx)
		if !l.leads && l.hasUrgent() {
			l.report(ctx)
		}
		var ticks <-chan time.Time
		// Whether the replica leads is looked at each time.
		ticking := len(l.active) > 0 || l.options.Leading != nil
		switch {
		case ticking && ticker == nil:
			ticker = l.options.Clock.NewTicker(sampleInterval)
			l.tick = false
		case !ticking && ticker != nil:
			ticker.Stop()
			ticker = nil
		}
		if ticker != nil {
			ticks = ticker.C()
		}
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-ticks:
			l.turn()
			// What was told before comes first.
			l.receive(ctx)
			if l.leads {
				l.pass(ctx)
			} else {
				l.report(ctx)
			}
		}
	}
}

// insert adds a revision that nothing is known about. mu is held.
func (l *Loop) insert(key routing.Key) *revision {
	r := &revision{key: key}
	l.revisions[key] = r
	return r
}

// forget removes a revision. mu is held.
func (l *Loop) forget(r *revision) {
	r.gone = true
	delete(l.revisions, r.key)
	l.enqueue(r)
}

// enqueue has Run look at what a revision was told. mu is held.
func (l *Loop) enqueue(r *revision) {
	if !r.queued {
		r.queued = true
		l.inbox = append(l.inbox, r)
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// hasUrgent tells whether to report before it is time.
func (l *Loop) hasUrgent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.urgent
}

// receive handles what the revisions in the inbox were told.
func (l *Loop) receive(ctx context.Context) {
	l.mu.Lock()
	queued := l.inbox
	l.inbox, l.spare = l.spare[:0], queued
	resettled := l.resettled
	l.resettled = false
	l.mu.Unlock()
	now := l.options.Clock.Now()
	for i, r := range queued {
		if ctx.Err() != nil {
			return
		}
		if l.leads {
			l.handle(ctx, r, now, resettled)
		} else {
			l.note(r)
		}
		queued[i] = nil
	}
}

// pass samples the active revisions, and decides about them every other time.
func (l *Loop) pass(ctx context.Context) {
	now := l.options.Clock.Now()
	kept := l.active[:0]
	for _, r := range l.active {
		if ctx.Err() == nil && r.needsTicks() {
			l.step(ctx, r, now, l.tick)
		}
		if r.listed = r.needsTicks(); r.listed {
			kept = append(kept, r)
		}
	}
	clear(l.active[len(kept):])
	l.active = kept
	l.tick = !l.tick
}
