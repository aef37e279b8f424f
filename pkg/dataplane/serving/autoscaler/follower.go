package autoscaler

import (
	"context"
	"slices"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// announceInterval is the minimum interval between two activations of a revision for requests that wait at this replica.
const announceInterval = time.Second

// follower is the part of a Loop that acts while another replica leads: it keeps the scales that it observes, to continue
// with them when this replica becomes the leader, and sends the load that its gateway sees to the leader.
type follower struct {
	options  *Options
	registry *registry
	// failing is true if the latest report was not sent. Owned by Run.
	failing bool
	// unsent are cold starts of the gateway that were not sent yet, oldest change first. Owned by Run.
	unsent []ColdStart
}

// maxUnsent bounds follower.unsent. The oldest changes are dropped.
const maxUnsent = 256

// handle records the observed scale of a changed revision.
func (f *follower) handle(r *revision) {
	changes := f.registry.changes(r)
	if changes.spec == nil {
		return
	}
	if changes.state != nil {
		r.running = *changes.state
	}
	f.registry.setDesired(r, max(r.running.Desired, r.running.Ready))
}

// activate activates a revision at zero and requests a report.
func (f *follower) activate(key routing.Key) {
	if f.announce(key) {
		f.options.ActivateNow(key)
	}
}

// announce requests a report, and reports whether to activate the revision now.
func (f *follower) announce(key routing.Key) bool {
	f.registry.mu.Lock()
	defer f.registry.mu.Unlock()
	r := f.registry.revisions[key]
	if r == nil || !r.announcementDue(f.options.Clock.Now()) {
		return false
	}
	f.registry.requestReport()
	return true
}

// announcementDue reports whether to activate a revision for waiting requests now, and counts the activation. registry.mu is
// held.
func (r *revision) announcementDue(now time.Time) bool {
	if r.state.Desired > 0 || now.Sub(r.announced) < announceInterval {
		return false
	}
	r.announced = now
	return true
}

// report sends the load that the gateway sees to the leader, and activates revisions at zero whose requests still wait.
func (f *follower) report(ctx context.Context) {
	now := f.options.Clock.Now()
	f.unsent = append(f.unsent, f.options.coldStarts()...)
	f.unsent = slices.Delete(f.unsent, 0, max(0, len(f.unsent)-maxUnsent))
	report := &Report{Member: f.options.Members.Current().Self(), Usages: f.options.Report(now), ColdStarts: f.unsent}
	for _, key := range f.waitingAtZero(report.Usages, now) {
		f.options.ActivateNow(key)
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := f.options.Send(ctx, report)
	if err != nil && !f.failing && ctx.Err() == nil {
		f.options.Logger.V(2).Info("Failed to report the load of revisions; retrying", "err", err)
	}
	f.failing = err != nil
	if !f.failing {
		f.unsent = nil
	}
}

// waitingAtZero returns the revisions to activate for their waiting requests, and clears the request for a report.
func (f *follower) waitingAtZero(usages []Usage, now time.Time) []routing.Key {
	f.registry.mu.Lock()
	defer f.registry.mu.Unlock()
	f.registry.reportNow = false
	var due []routing.Key
	for i := range usages {
		u := &usages[i]
		if r := f.registry.revisions[u.Key]; r != nil && u.Waiting > 0 && r.announcementDue(now) {
			due = append(due, u.Key)
		}
	}
	return due
}
