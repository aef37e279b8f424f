package autoscaler

import (
	"context"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// sampleInterval is the interval at which revisions with backends are sampled: at each tick and once between two ticks.
const sampleInterval = tickInterval / 2

// Options are the dependencies of a Loop. All are required, except the fields for several replicas.
type Options struct {
	// Settings returns the current operator settings.
	Settings func() *settings.Settings
	// Scale requests a number of backends from the workload. One goroutine calls it, and retries at the next sample after an
	// error, so it should return soon.
	Scale func(ctx context.Context, revision routing.Key, backends int32) error
	// Sample returns the load of a revision since the previous call, and false if the gateway does not route to the
	// revision, which is equivalent to no requests. One goroutine calls it. A request must be counted as waiting before
	// Activate is called for it.
	Sample func(revision routing.Key, now time.Time) (Sample, bool)
	// ColdStarts returns the cold starts that have begun or changed at the gateway since the previous call; Gateway is not set. Nil
	// means none. One goroutine calls it.
	ColdStarts func() []ColdStart
	Clock      clock.WithTicker
	Logger     klog.Logger

	// Leading reports whether this replica decides. Nil means a single replica, for which the fields below have no
	// effect; otherwise all of them are required.
	Leading func() bool
	// Members are the replicas whose reports count.
	Members *membership.View
	// Report returns the load that the gateway saw since the previous call, see Report.Usages. One goroutine calls it, and
	// only while this replica follows; Sample is called only while it leads.
	Report func(now time.Time) []Usage
	// Send sends a report to the leader, see Report.Post. One goroutine calls it, with a timeout of one second.
	Send func(ctx context.Context, report *Report) error
	// ActivateNow starts a backend of a revision at zero for a waiting request, on behalf of the leader. It must not block.
	ActivateNow func(revision routing.Key)
}

// Loop scales all revisions. Its methods may be called concurrently and do not block; their input takes effect while Run
// runs. Only revisions that have or should have backends cost CPU over time. Loop implements metrics.StableCollector.
//
// Its parts, by responsibility: registry holds the revisions and queues changed ones, scaler decides and applies while this
// replica leads, follower reports to the leader otherwise, and peerUsage holds the reports of the other replicas.
type Loop struct {
	*collector
	options  *Options
	registry *registry
	peers    *peerUsage
	scaler   *scaler
	follower *follower
	// leads is true if this replica led when Run last checked. Owned by Run.
	leads bool
}

// New returns a Loop, which Run starts.
func New(options Options) *Loop {
	o := &options
	revisions := newRegistry()
	peers := &peerUsage{members: o.Members, reports: map[string]*received{}}
	if o.Members != nil {
		o.Members.Subscribe(peers.retain)
	}
	return &Loop{
		collector: &collector{descriptions: describe(), options: o, registry: revisions},
		options:   o,
		registry:  revisions,
		peers:     peers,
		scaler:    &scaler{options: o, registry: revisions, peers: peers},
		follower:  &follower{options: o, registry: revisions},
		leads:     !o.replicated(),
	}
}

// replicated reports whether other replicas may lead.
func (o *Options) replicated() bool { return o.Leading != nil }

// leading reports whether this replica decides.
func (o *Options) leading() bool { return !o.replicated() || o.Leading() }

// coldStarts returns the cold starts that have begun or changed at the gateway since the previous call.
func (o *Options) coldStarts() []ColdStart {
	if o.ColdStarts == nil {
		return nil
	}
	return o.ColdStarts()
}

// SetRevision adds or updates a revision. A revision with another UID replaces the one with the same name.
func (l *Loop) SetRevision(spec *routing.Revision) { l.registry.set(spec) }

// DeleteRevision removes a revision. The workload stops its backends when the revision is deleted there.
func (l *Loop) DeleteRevision(key routing.Key) { l.registry.remove(key) }

// Observe records the state of a revision in the workload; the zero State means that it was removed there. It is a callback
// for workload.Subscribe, and keeps the state of revisions that are not set yet.
func (l *Loop) Observe(key routing.Key, state workload.State) {
	// When the scale reaches zero, a replica that follows reports at once: requests may already wait at its gateway.
	l.registry.observe(key, state, l.options.replicated())
}

// Activate reports that a request waits for a backend of a revision. It has an effect only at a scale of zero: then one
// decision scales the revision up at once, however often Activate is called meanwhile. While another replica leads,
// Activate calls Options.ActivateNow and sends a report at once.
func (l *Loop) Activate(key routing.Key) {
	if l.options.leading() {
		l.registry.request(key)
	} else {
		l.follower.activate(key)
	}
}

// SettingsChanged resolves the configuration of all revisions again.
func (l *Loop) SettingsChanged() { l.registry.settingsChanged() }

// receiveReport records the report of another replica.
func (l *Loop) receiveReport(report *Report) {
	l.peers.put(report, l.options.Clock.Now())
	if l.options.leading() {
		l.registry.addColdStarts(report.Member, report.ColdStarts)
		l.registry.requestReported(report.Usages)
	}
}

// Run decides and applies decisions until ctx is canceled.
func (l *Loop) Run(ctx context.Context) {
	var ticker clock.Ticker
	defer func() {
		if ticker != nil {
			ticker.Stop()
		}
	}()
	l.registry.begin(l.options.Clock.Now())
	for {
		l.checkLeadership()
		l.receive(ctx)
		if !l.leads && l.registry.reportRequested() {
			l.follower.report(ctx)
		}
		var ticks <-chan time.Time
		// Several replicas tick even without active revisions, to notice a change of the leader.
		ticking := l.scaler.active() || l.options.replicated()
		switch {
		case ticking && ticker == nil:
			ticker = l.options.Clock.NewTicker(sampleInterval)
			l.scaler.restartTicks()
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
		case <-l.registry.changed:
		case <-ticks:
			l.checkLeadership()
			// Changes that arrived before the tick come first.
			l.receive(ctx)
			if l.leads {
				l.scaler.sampleAll(ctx)
			} else {
				l.follower.report(ctx)
			}
		}
	}
}

// checkLeadership resets all decisions when this replica starts or stops leading.
func (l *Loop) checkLeadership() {
	leads := l.options.leading()
	if leads == l.leads {
		return
	}
	l.leads = leads
	l.scaler.reset()
	l.registry.reset(l.options.Clock.Now())
}

// receive handles the revisions that changed.
func (l *Loop) receive(ctx context.Context) {
	if l.leads {
		gateway := ""
		if l.options.replicated() {
			gateway = l.options.Members.Current().Self()
		}
		l.registry.addColdStarts(gateway, l.options.coldStarts())
	}
	revisions, settingsChanged := l.registry.dequeueAll()
	now := l.options.Clock.Now()
	for i, r := range revisions {
		if ctx.Err() != nil {
			return
		}
		if l.leads {
			l.scaler.handle(ctx, r, now, settingsChanged)
		} else {
			l.follower.handle(r)
		}
		revisions[i] = nil
	}
}
