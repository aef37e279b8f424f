package delivery

import (
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery/internal/machine"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/record"
)

// dispatcher makes the attempts of a Queue, as many at a time as the concurrency limiter and the namespace's share admit.
type dispatcher struct {
	queue *Queue
	// limiter and wakeup are guarded by the mu of the Queue. wakeup calls start when a delivery becomes due or the limiter
	// admits more.
	limiter limiter
	wakeup  clock.Timer
	// queued is true while the dispatcher waits for the namespace's share. The mu of the Share guards it.
	queued bool
}

// start starts the attempts that are due and admitted. The mu of the Queue is held.
func (p *dispatcher) start() {
	for d := p.next(false); d != nil; d = p.next(false) {
		p.run(d)
	}
	p.queue.evictor.watch()
}

// startOne starts an attempt that the namespace's share admitted, and returns false if none is due.
func (p *dispatcher) startOne() bool {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	d := p.next(true)
	if d == nil {
		return false
	}
	p.run(d)
	p.start()
	return true
}

func (p *dispatcher) wake() {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	p.start()
}

// run makes the attempt of a delivery on a worker, and of others as long as any are admitted. The mu of the Queue is held.
func (p *dispatcher) run(d *Delivery) {
	p.queue.running.Add(1)
	p.queue.stream.config.Workers.run(func() {
		defer p.queue.running.Done()
		for next := d; next != nil; {
			next = p.attempt(next)
		}
	})
}

// next returns a delivery whose attempt starts now, if the limiter and the namespace's share admit it; admitted is true if the
// share did before. Otherwise it ensures that start is called when an attempt may be admitted. The mu of the Queue is held.
func (p *dispatcher) next(admitted bool) *Delivery {
	q := p.queue
	if q.stopped || q.paused {
		return nil
	}
	now := q.now()
	for d := q.index.promote(now); d != nil; d = q.index.promote(now) {
		q.apply(d, machine.Due)
	}
	wake, inFlight := q.index.next(), len(q.index.inFlight)
	if q.index.ready.len() > 0 && !(q.config.Ordered() && inFlight > 0) {
		ok, at := p.limiter.allows(inFlight, now)
		// Without a share, the Share calls startOne later.
		if ok && (admitted || q.config.Share.acquire(p)) {
			d := q.index.ready.pop()
			d.started, d.timed = now, d.state.Record.Shared()
			q.apply(d, machine.Started)
			return d
		}
		if !ok && !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	if !wake.IsZero() {
		p.stop()
		p.wakeup = q.stream.config.Clock.AfterFunc(wake.Sub(now), p.wake)
	}
	return nil
}

// stop stops the timer of wakeup. The mu of the Queue is held.
func (p *dispatcher) stop() {
	if p.wakeup != nil {
		p.wakeup.Stop()
	}
}

// attempt makes the attempt of a delivery, and returns the next delivery that is admitted, if any.
func (p *dispatcher) attempt(d *Delivery) *Delivery {
	q := p.queue
	var slow clock.Timer
	if d.timed {
		slow = q.stream.config.Clock.AfterFunc(SharedTimeout, func() { q.evictor.evictSlow(d) })
	}
	o := q.config.Attempt(q.ctx, d)
	if slow != nil {
		slow.Stop()
	}
	q.config.Share.release()
	next, deadLetter := p.finish(d, &o)
	if deadLetter {
		p.sendDeadLetter(d, o.DeadLetter)
	}
	return next
}

// finish applies the outcome of an attempt. It returns the next delivery to attempt, if any, and whether a dead letter must
// be sent.
func (p *dispatcher) finish(d *Delivery, o *Outcome) (next *Delivery, deadLetter bool) {
	q := p.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if o.Event == Aborted {
		q.apply(d, Aborted)
		return nil, false
	}
	now, inFlight := q.now(), len(q.index.inFlight)
	q.behind = q.behind || o.Overloaded
	if p.limiter.observe(o, d.started, inFlight, now) {
		p.retryUnanswered()
	}
	e := o.Event
	if e == Failed {
		if !o.Skipped {
			d.Attempts++
		}
		switch inOrder := q.config.Ordered() && d.state.Record == machine.Owned && inFlight == 1; {
		case inOrder && o.Skipped:
			// It keeps its place. The limiter delays the next attempt.
			e = machine.Aborted
		case inOrder:
			// The log counts each time that a segment is returned to it, as an attempt.
			e = machine.FailedInOrder
		default:
			d.due, d.unanswered = now.Add(o.Backoff), o.Unanswered
		}
	}
	effects := q.apply(d, e)
	if effects&machine.Return != 0 {
		q.returnAll(d, o.Backoff)
	} else if q.paused && !q.stopped {
		q.returnAll(nil, 0)
	}
	if next = p.next(false); next != nil {
		p.start()
	}
	q.evictor.watch()
	return next, effects&machine.SendDeadLetter != 0
}

// retryUnanswered makes the deliveries due that wait because the endpoint did not answer. The mu of the Queue is held.
func (p *dispatcher) retryUnanswered() {
	for _, d := range p.queue.index.removeWaiting() {
		if d.unanswered {
			p.queue.apply(d, machine.Due)
		} else {
			p.queue.index.wait(d)
		}
	}
}

// sendDeadLetter passes the event that reports a failed delivery to the Queue of the dead letter sink. The delivery ends when
// the dead letter ends, or has a record of its own.
func (p *dispatcher) sendDeadLetter(d *Delivery, e *event.Event) {
	q := p.queue
	from := &segment{handle: ended(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.apply(d, machine.DeadLetterEnded)
	})}
	from.left.Store(1)
	q.config.DeadLetters.Offer(&Delivery{
		Event: e, id: record.NewID(), accepted: d.accepted, state: machine.State{Record: machine.Shared}, shared: from,
	})
}
