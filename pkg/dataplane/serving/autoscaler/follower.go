package autoscaler

import (
	"context"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// With several replicas, the one that leads decides, by what all gateways see. The others take note of what they are
// told, so that they can go on when they come to lead, and report.

// announceInterval is how often scale is asked for, at most, for requests that wait at a revision without instance.
const announceInterval = time.Second

// leading tells whether this replica decides.
func (l *Loop) leading() bool { return l.options.Leading == nil || l.options.Leading() }

// turn takes note of whether this replica leads now. When it begins to, what runs is the scale to begin with, and is
// kept for a stable window, as only by then what the gateways see tells how much is needed.
func (l *Loop) turn() {
	leads := l.leading()
	if leads == l.leads {
		return
	}
	l.leads = leads
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.active)
	l.active = l.active[:0]
	for _, r := range l.revisions {
		r.listed, r.failed = false, false
		r.memory, r.window, r.stable, r.panicking = Memory{}, nil, Average{}, Average{}
		r.resolved, r.activated, r.asked = nil, time.Time{}, nil
		// As if all were told anew.
		r.desired, r.observed = 0, r.observed || r.state.UID != ""
		l.enqueue(r)
	}
}

// note takes what a revision was told while another replica leads.
func (l *Loop) note(r *revision) {
	told := l.take(r)
	if told.spec == nil {
		return
	}
	if told.state != nil {
		r.running = *told.state
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.desired = max(r.running.Desired, r.running.Ready)
}

// announce has a revision that another replica decides about scaled from zero at once. mu is held.
func (l *Loop) announce(r *revision) (now bool) {
	at := l.options.Clock.Now()
	if r.state.Desired > 0 || at.Sub(r.announced) < announceInterval {
		return false
	}
	r.announced = at
	l.hurry()
	return true
}

// hurry has Run go on at once. mu is held.
func (l *Loop) hurry() {
	l.urgent = true
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// report tells the replica that leads what this one's gateway sees.
func (l *Loop) report(ctx context.Context) {
	now := l.options.Clock.Now()
	report := &Report{Member: l.options.Members.Current().Self(), Usages: l.options.Report(now)}
	var again []routing.Key
	l.mu.Lock()
	l.urgent = false
	for i := range report.Usages {
		u := &report.Usages[i]
		if r := l.revisions[u.Key]; r != nil && u.Waiting > 0 && r.state.Desired == 0 && now.Sub(r.announced) >= announceInterval {
			r.announced = now
			again = append(again, u.Key)
		}
	}
	l.mu.Unlock()
	for _, key := range again {
		l.options.ActivateNow(key)
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := l.options.Send(ctx, report)
	if err != nil && !l.unsent && ctx.Err() == nil {
		l.options.Logger.V(2).Info("Reporting the usage of revisions failed, trying again", "err", err)
	}
	l.unsent = err != nil
}
