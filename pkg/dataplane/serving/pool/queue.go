package gateway

import (
	"context"
	"errors"
	"math"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

// waiter is a request that waits for an instance. It is in a queue until it is granted one or leaves.
type waiter struct {
	// granted gets the instance, whose slot is the waiter's then. It is closed where there will be none: refusal
	// says why.
	granted    chan *instance
	refusal    *http1.Refusal
	prev, next *waiter
	queued     bool
}

// queue has waiters in the order in which they came.
type queue struct {
	first, last *waiter
	length      int
}

// push adds a waiter: at the front if it has waited before.
func (q *queue) push(w *waiter, front bool) {
	w.queued = true
	q.length++
	switch {
	case q.first == nil:
		q.first, q.last = w, w
	case front:
		w.next, q.first.prev = q.first, w
		q.first = w
	default:
		w.prev, q.last.next = q.last, w
		q.last = w
	}
}

// remove takes a queued waiter out.
func (q *queue) remove(w *waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.last = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
	q.length--
}

// queueLimit returns how many requests may wait while some instances are usable: the large limit while their capacity is
// below the target burst capacity, of which 0 is none and -1 any, and queueDepth per unit of capacity beyond it.
func (p *pool) queueLimit(usable int) int {
	if p.limit == math.MaxInt || usable == 0 {
		return largeQueue
	}
	burst := p.gateway.options.TargetBurstCapacity()
	if p.burst != nil {
		burst = *p.burst
	}
	capacity := p.limit * usable
	if burst < 0 || float64(capacity) < burst {
		return largeQueue
	}
	return queueDepth * capacity
}

// acquire takes a slot of an instance, or waits for one. again tells that the request has waited before: it comes
// first then. Without instance and refusal, the client went away.
func (p *pool) acquire(ctx context.Context, again bool) (inst *instance, first bool, refusal *http1.Refusal) {
	p.mu.Lock()
	if p.queue.length == 0 || again {
		if inst := p.pick(); inst != nil { //nolint:contextcheck // what it may ask other replicas is for all that wait
			p.mu.Unlock()
			return inst, false, nil
		}
	}
	usable := p.usable()
	limit := p.queueLimit(usable)
	if p.large = p.large || limit == largeQueue; p.large {
		limit = max(limit, largeQueue)
	}
	switch {
	case p.closed:
		refusal = noLonger
	case p.owner.Load() != nil:
		refusal = http1.HandOver
	case p.queue.length >= limit && !again:
		refusal = queueFull
	}
	if refusal != nil {
		p.mu.Unlock()
		return nil, false, refusal
	}
	w := &waiter{granted: make(chan *instance, 1)}
	p.queue.push(w, again)
	p.observeQueue()
	if usable == 0 {
		first = p.chill()
	}
	p.mu.Unlock()
	began := p.clock.Now()
	if usable == 0 {
		p.activate(p.key)
		if first {
			p.scheduled()
		}
	}
	inst, refusal = p.wait(ctx, w)
	if series := p.series.Load(); series != nil {
		series.waiting.Observe(p.clock.Since(began).Seconds())
	}
	return inst, first, refusal
}

// wait waits until the waiter gets an instance or ctx ends.
func (p *pool) wait(ctx context.Context, w *waiter) (*instance, *http1.Refusal) {
	select {
	case inst := <-w.granted:
		if inst == nil {
			return nil, w.refusal
		}
		return inst, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	queued := w.queued
	if queued {
		p.queue.remove(w)
		if p.queue.length == 0 && !p.start.began.IsZero() {
			// Nobody waits for its end.
			p.start = coldStart{}
		}
		p.shrink()
		p.observeQueue()
	}
	p.mu.Unlock()
	if !queued {
		// It was granted at this moment: the slot is the next one's.
		if inst := <-w.granted; inst != nil {
			p.mu.Lock()
			drained := p.release(inst)
			p.mu.Unlock()
			if drained {
				p.drained(p.key, inst.name)
			}
		}
	}
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		return nil, tooLate
	}
	return nil, nil
}

// dispatch grants free slots to those who wait.
func (p *pool) dispatch() {
	if p.queue.length == 0 && !p.large {
		return
	}
	for p.queue.first != nil {
		inst := p.pick()
		if inst == nil {
			break
		}
		w := p.queue.first
		p.queue.remove(w)
		w.granted <- inst
		p.started()
	}
	p.shrink()
	p.observeQueue()
}

// chill notes that requests wait without an instance. It tells whether a cold start begins thereby.
func (p *pool) chill() bool {
	p.large = true
	return p.start.begin(p.clock.Now())
}

// shrink takes the large limit from the queue once it is short enough for the small one.
func (p *pool) shrink() {
	if p.large {
		p.large = p.queue.length > 0 && (p.limit == math.MaxInt || p.queue.length > queueDepth*p.limit*p.usable())
	}
}
