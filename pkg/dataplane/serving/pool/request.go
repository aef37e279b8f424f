package pool

import (
	"context"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// longLivedAfter is how long a response takes until its request counts as long-lived. Responses that end sooner are not cut
// by applications that exit at once when they are stopped.
const longLivedAfter = 5 * time.Second

// Outcome is the outcome of Request.Acquire.
type Outcome int

const (
	// Granted means that the request has a backend.
	Granted Outcome = iota
	// Rejected means that it may not wait.
	Rejected
	// Moved means that another replica owns the Revision now.
	Moved
	// Canceled means that the context of the request ended.
	Canceled
)

// Grant is the result of Request.Acquire.
type Grant struct {
	Outcome Outcome
	// Backend is set if the request was granted it, Rejection if it was rejected.
	Backend   *Backend
	Rejection *serving.Rejection
	// Cold is true if the request waited because there was no usable backend.
	Cold bool
	// Term is the term of the standing in which the backend was granted.
	Term int
	// Err is the reason why the request stopped waiting, if it did.
	Err error
}

// Waiter is what waits for a backend.
type Waiter interface {
	// Queued is called if the request has to wait for a backend, until ctx is canceled. It is followed by stop.
	Queued() (ctx context.Context, stop context.CancelFunc)
	// Describe returns a bounded description of the request for users, and when it was received. It is called if a cold start begins
	// with the request, with the lock of the pool held.
	Describe() (request string, received time.Time)
}

// Request is a request at a pool, which counts between Begin and End, and holds at most one backend. One goroutine uses it.
type Request struct {
	pool     *Pool
	backend  *Backend
	response *response
	// counted is true between Begin and End.
	counted bool
	// detached is true if the backend is released by the function that Detach returned.
	detached bool
	// waited is true if the request was in the queue, coldStart until its response starts if a cold start began with it.
	waited, coldStart bool
}

// Begin counts the request until End.
func (r *Request) Begin() {
	if r.counted {
		return
	}
	r.counted = true
	p, now := r.pool, r.pool.pools.options.Clock.Now()
	p.mu.Lock()
	if !p.reported {
		p.reported = true
		p.usage.since(p.pools.reports.add(p, now))
	}
	p.usage.begin(now)
	p.mu.Unlock()
}

// End ends the request, and releases its backend. Begin may follow.
func (r *Request) End(now time.Time) {
	if !r.counted {
		return
	}
	p, b := r.pool, r.backend
	p.mu.Lock()
	p.usage.end(now)
	drained := false
	if b != nil {
		b.failures, b.avoid = 0, time.Time{}
		if !r.detached {
			r.response.end()
			drained = p.release(b)
		}
	}
	p.unlock(b, drained)
	r.backend, r.response, r.counted, r.detached = nil, nil, false, false
}

// Detach makes the request keep its place at the backend beyond End, until release is called. It returns nil if the request has no place
// to keep, because it has no backend or the Revision has no containerConcurrency.
func (r *Request) Detach() (release func()) {
	p, b, response := r.pool, r.backend, r.response
	if revision := p.revision.Load(); b == nil || r.detached || revision != nil && revision.ContainerConcurrency == 0 {
		return nil
	}
	r.detached = true
	return func() {
		p.mu.Lock()
		response.end()
		p.unlock(b, p.release(b))
	}
}

// Backend returns the backend that the request holds, or nil.
func (r *Request) Backend() *Backend { return r.backend }

// Waited reports whether the request waited for a backend, or gets another one because its first was unreachable. It
// waits at the front then.
func (r *Request) Waited() bool { return r.waited }

// Acquire acquires a backend. If all are busy, the request waits.
func (r *Request) Acquire(w Waiter) Grant {
	p := r.pool
	p.mu.Lock()
	if p.queue.length == 0 || r.waited {
		if b := p.choose(); b != nil {
			term := p.owner.term
			p.mu.Unlock()
			r.backend = b
			return Grant{Backend: b, Term: term}
		}
	}
	usable := p.usable()
	full := p.queue.full(capacity{perBackend: p.limit, usable: usable, burst: p.burstCapacity()})
	switch {
	case p.closed:
		p.mu.Unlock()
		return Grant{Outcome: Rejected, Rejection: revisionGone}
	case p.owner.other.Load() != nil:
		p.mu.Unlock()
		return Grant{Outcome: Moved}
	case p.owner.suspended():
		p.mu.Unlock()
		return Grant{Outcome: Rejected, Rejection: Suspended}
	case full && !r.waited:
		p.mu.Unlock()
		return Grant{Outcome: Rejected, Rejection: queueFull}
	}
	in := newWaiting()
	p.queue.push(in, r.waited)
	p.observeQueue()
	first := usable == 0 && p.beginColdStart()
	if first {
		p.recordColdStart(w)
	}
	p.mu.Unlock()
	ctx, stop := w.Queued()
	defer stop()
	r.waited, r.coldStart = true, r.coldStart || first
	began := p.pools.options.Clock.Now()
	if usable == 0 {
		p.pools.options.Activate(p.key)
		if first {
			p.mu.Lock()
			p.endPhase(scheduling)
			p.mu.Unlock()
		}
	}
	grant := p.wait(ctx, in)
	r.backend, grant.Cold = grant.Backend, usable == 0
	p.series.Load().observeWait(p.pools.options.Clock.Since(began))
	return grant
}

// Unreachable releases the backend, which accepted no connection, and avoids it for a while.
func (r *Request) Unreachable() {
	p, b := r.pool, r.backend
	r.backend, r.waited = nil, true
	p.mu.Lock()
	if pause := b.unreachable(p.pools.options.Clock.Now()); pause > 0 {
		time.AfterFunc(pause, p.retry)
	}
	p.unlock(b, p.release(b))
}

// ResponseStarted ends a cold start that began with the request.
func (r *Request) ResponseStarted() {
	if !r.coldStart {
		return
	}
	r.coldStart = false
	r.pool.mu.Lock()
	defer r.pool.mu.Unlock()
	r.pool.endPhase(forwarding)
	r.pool.endRecorded()
}

// Streaming notes that the response takes a while; endless is true if it has no end by nature. The request is long-lived at
// once in that case, and otherwise after longLivedAfter. Long-lived requests do not delay the end of a backend: the
// application gets its signal, and can end them in its own way.
func (r *Request) Streaming(endless bool) {
	if r.backend == nil || r.response != nil {
		return
	}
	r.response = &response{pool: r.pool, backend: r.backend}
	if endless {
		r.response.outlive()
		return
	}
	r.response.timer = time.AfterFunc(longLivedAfter, r.response.outlive)
}

// response is a response that takes a while. The lock of the pool guards longLived and ended.
type response struct {
	pool    *Pool
	backend *Backend
	// timer calls outlive, or is nil.
	timer            *time.Timer
	longLived, ended bool
}

// outlive makes the request long-lived.
func (r *response) outlive() {
	p := r.pool
	p.mu.Lock()
	drained := false
	if !r.ended {
		r.longLived = true
		r.backend.longLived++
		drained = p.backends.settle(r.backend)
	}
	p.unlock(r.backend, drained)
}

// end ends the response, if there is one. The lock of the pool is held.
func (r *response) end() {
	if r == nil {
		return
	}
	r.ended = true
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.longLived {
		r.backend.longLived--
	}
}
