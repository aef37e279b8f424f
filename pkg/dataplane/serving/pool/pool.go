package pool

import (
	"context"
	"errors"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/fairness"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

var (
	queueFull    = &serving.Rejection{Status: http.StatusServiceUnavailable, Body: "pending request queue full", RetryAfter: time.Second}
	revisionGone = &serving.Rejection{Status: http.StatusServiceUnavailable, Body: "revision is gone", RetryAfter: time.Second}
)

// Pool is the backends of a Revision with the requests that wait for one (serving 8-7): first come, first served; at the
// backend with the fewest requests; never more than containerConcurrency at one.
type Pool struct {
	pools  *Pools
	key    routing.Key
	tenant *fairness.Tenant
	// owner is the other replica that the requests are for, or nil if they are for this one.
	owner atomic.Pointer[membership.Member]
	// revision is nil while the Revision is unknown: nothing is sent to its backends then.
	revision atomic.Pointer[routing.Revision]
	// series is nil until the first request: most Revisions at rest never have one.
	series atomic.Pointer[Series]
	// references counts the calls of Retain; the lock of Pools guards it.
	references int

	// mu guards the fields below.
	mu sync.Mutex
	// limit bounds the requests of one backend.
	limit int
	// burst is the target burst capacity that the Revision sets, or nil if the operator's is in force.
	burst    *float64
	backends backends
	queue    queue
	closed   bool
	claim    ownership.Claim
	metrics  measurements
	// changed, if a drain waits for it, is closed when backends come, go, or have drained.
	changed chan struct{}
}

func newPool(key routing.Key, pools *Pools) *Pool {
	now := pools.options.Clock.Now()
	return &Pool{
		pools: pools, key: key, tenant: pools.options.Fairness.Tenant(key.Namespace), limit: math.MaxInt,
		backends: newBackends(pools.options.Clock), metrics: measurements{usage: usage{sampled: now, changed: now}},
	}
}

// Key returns the key of the Revision.
func (p *Pool) Key() routing.Key { return p.key }

// Tenant returns the tenant that the requests belong to.
func (p *Pool) Tenant() *fairness.Tenant { return p.tenant }

// Revision returns the Revision; known is false until it is set.
func (p *Pool) Revision() (revision *routing.Revision, known bool) {
	revision = p.revision.Load()
	return revision, revision != nil
}

// Owner returns the other replica that the requests are for; other is false if they are for this one.
func (p *Pool) Owner() (owner *membership.Member, other bool) {
	owner = p.owner.Load()
	return owner, owner != nil
}

// setRevision sets the Revision, or makes it unknown by nil.
func (p *Pool) setRevision(revision *routing.Revision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revision.Store(revision)
	if series := p.series.Load(); series != nil && (revision == nil || !series.same(revision)) {
		series.remove()
		p.series.Store(nil)
	}
	p.limit, p.burst = math.MaxInt, nil
	if revision != nil {
		if revision.ContainerConcurrency > 0 {
			p.limit = revision.ContainerConcurrency
		}
		p.burst = revision.Autoscaling.BurstCapacity
	}
	p.locate()
	p.dispatch()
}

// setBackends sets the backends. The function that it returns calls Options.Drained and Options.Activate, which need that
// no lock is held.
func (p *Pool) setBackends(instances []workload.Instance) (notify func()) {
	p.mu.Lock()
	drained := p.backends.set(instances, p.pools.options.Seed)
	p.signal()
	p.dispatch()
	waits := p.queue.length > 0 && len(p.backends.ready) == 0
	if waits {
		p.coldStart()
	}
	p.mu.Unlock()
	return func() {
		for _, b := range drained {
			p.report(b, true)
		}
		if waits {
			p.pools.options.Activate(p.key)
		}
	}
}

// ownerChanged determines the owner once more.
func (p *Pool) ownerChanged() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.locate()
	p.dispatch()
}

// close ends the pool: requests that wait are rejected.
func (p *Pool) close() {
	p.mu.Lock()
	p.closed = true
	p.flush(Grant{Outcome: Rejected, Rejection: revisionGone})
	p.mu.Unlock()
}

// Begin counts a request until End.
func (p *Pool) Begin(now time.Time) {
	p.mu.Lock()
	if !p.metrics.reported {
		p.metrics.reported = true
		p.metrics.usage.since(p.pools.reports.add(p, now))
	}
	p.metrics.usage.begin(now)
	p.mu.Unlock()
}

// End ends a request with its response in progress and releases its backend; both may be nil.
func (p *Pool) End(b *Backend, r *Response, now time.Time) {
	p.mu.Lock()
	p.metrics.usage.end(now)
	if r != nil {
		r.end(b)
	}
	drained := false
	if b != nil {
		b.failures, b.avoid = 0, time.Time{}
		drained = p.release(b)
	}
	p.mu.Unlock()
	p.report(b, drained)
}

// Unreachable releases a backend that accepted no connection, and avoids it for a while.
func (p *Pool) Unreachable(b *Backend) {
	p.mu.Lock()
	if pause := b.unreachable(p.pools.options.Clock.Now()); pause > 0 {
		time.AfterFunc(pause, p.retry)
	}
	drained := p.release(b)
	p.mu.Unlock()
	p.report(b, drained)
}

// retry grants a backend that was avoided.
func (p *Pool) retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dispatch()
}

// release releases a backend. It reports whether that has drained thereby.
func (p *Pool) release(b *Backend) bool {
	b.inFlight--
	p.dispatch()
	drained := p.settle(b)
	if p.backends.forget(b) {
		// The lock of Pools comes before the lock of a pool.
		go p.pools.drop(p)
	}
	return drained
}

// settle checks a backend that may be idle now. It reports whether Options.Drained is to be called for it.
func (p *Pool) settle(b *Backend) bool {
	if !b.idle() {
		return false
	}
	if p.backends.gone[b.name] == b {
		p.signal()
	}
	if p.backends.all[b.name] != b || !b.hasDrained() {
		return false
	}
	p.signal()
	return true
}

func (p *Pool) report(b *Backend, drained bool) {
	if drained {
		p.pools.options.Drained(p.key, b.name)
	}
}

// signal wakes drains that wait for a change.
func (p *Pool) signal() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Acquire grants a request a backend. If all are busy, the request waits, at the front if it has waited before.
func (p *Pool) Acquire(w Waiter, before bool) Grant {
	p.mu.Lock()
	if p.queue.length == 0 || before {
		if b := p.choose(); b != nil {
			p.mu.Unlock()
			return Grant{Backend: b}
		}
	}
	usable := p.usable()
	full := p.queue.full(capacity{perBackend: p.limit, usable: usable, burst: p.burstCapacity()})
	switch {
	case p.closed:
		p.mu.Unlock()
		return Grant{Outcome: Rejected, Rejection: revisionGone}
	case p.owner.Load() != nil:
		p.mu.Unlock()
		return Grant{Outcome: Moved}
	case full && !before:
		p.mu.Unlock()
		return Grant{Outcome: Rejected, Rejection: queueFull}
	}
	in := newWaiting()
	p.queue.push(in, before)
	p.observeQueue()
	first := usable == 0 && p.coldStart()
	p.mu.Unlock()
	ctx, stop := w.Queued()
	defer stop()
	began := p.pools.options.Clock.Now()
	if usable == 0 {
		p.pools.options.Activate(p.key)
		if first {
			p.scheduled()
		}
	}
	grant := p.wait(ctx, in)
	if series := p.series.Load(); series != nil {
		series.waiting.Observe(p.pools.options.Clock.Since(began).Seconds())
	}
	grant.Waited, grant.ColdStart = true, first
	return grant
}

// burstCapacity returns the target burst capacity of the Revision.
func (p *Pool) burstCapacity() float64 {
	if p.burst == nil {
		return p.pools.options.TargetBurstCapacity()
	}
	return *p.burst
}

// wait waits until a request is granted a backend or ctx ends.
func (p *Pool) wait(ctx context.Context, in *waiting) Grant {
	select {
	case grant := <-in.granted:
		return grant
	case <-ctx.Done():
	}
	p.mu.Lock()
	queued := in.queued
	if queued {
		p.queue.remove(in)
		if p.queue.length == 0 && !p.metrics.start.began.IsZero() {
			// No request waits for its end.
			p.metrics.start = coldStart{}
		}
		p.queue.shrink(p.limit, p.usable())
		p.observeQueue()
	}
	p.mu.Unlock()
	if !queued {
		// It was granted at this moment: the backend is for the next request.
		if grant := <-in.granted; grant.Outcome == Granted {
			p.mu.Lock()
			drained := p.release(grant.Backend)
			p.mu.Unlock()
			p.report(grant.Backend, drained)
		}
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return Grant{Outcome: Rejected, Rejection: serving.TimedOut, Err: cause}
	}
	return Grant{Outcome: Canceled, Err: cause}
}

// choose grants a slot of a backend, or returns nil.
func (p *Pool) choose() *Backend {
	if p.revision.Load() == nil || !p.claimed() {
		return nil
	}
	return p.backends.choose(p.limit, &p.claim)
}

// usable returns the number of backends that accept requests.
func (p *Pool) usable() int {
	if p.revision.Load() == nil {
		return 0
	}
	return p.backends.usable()
}

// dispatch grants backends to requests that wait.
func (p *Pool) dispatch() {
	if p.queue.length == 0 && !p.queue.large {
		return
	}
	for p.queue.first != nil {
		b := p.choose()
		if b == nil {
			break
		}
		p.queue.grant(Grant{Backend: b})
		p.started()
	}
	p.queue.shrink(p.limit, p.usable())
	p.observeQueue()
}

// flush ends the wait of all requests. p.mu is held.
func (p *Pool) flush(grant Grant) {
	for p.queue.first != nil {
		p.queue.grant(grant)
	}
	p.observeQueue()
}

// coldStart notes that requests wait without a backend. It reports whether a cold start begins thereby.
func (p *Pool) coldStart() bool {
	p.queue.large = true
	return p.metrics.start.begin(p.pools.options.Clock.Now())
}

// InFlight returns the requests in flight by backend; owned is true if this replica owns the Revision and may send more.
func (p *Pool) InFlight() (requests map[string]int, owned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backends.requests(), p.limit < math.MaxInt && p.owner.Load() == nil
}

// Drained reports whether a backend gets no more requests and has only long-lived ones, and whether it is known. changed is
// closed when this may be different.
func (p *Pool) Drained(backend string) (drained, known bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	drained, known = p.backends.drained(backend)
	return drained, known, p.changed
}

// Waiting returns the number of requests that wait for a backend.
func (p *Pool) Waiting() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.length
}

// empty reports whether there is neither a backend nor a request at one.
func (p *Pool) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.backends.all) == 0 && len(p.backends.gone) == 0
}
