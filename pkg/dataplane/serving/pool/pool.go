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
	queueFull = &serving.Rejection{Status: http.StatusServiceUnavailable, Body: "pending request queue full", RetryAfter: time.Second}
	// Suspended rejects a request to a Revision that this replica owns while its standing has lapsed.
	Suspended    = &serving.Rejection{Status: http.StatusServiceUnavailable, Body: "the gateway has no connection to the others", RetryAfter: time.Second}
	revisionGone = &serving.Rejection{Status: http.StatusServiceUnavailable, Body: "revision is gone", RetryAfter: time.Second}
)

// Pool is the backends of a Revision with the requests that wait for one (serving 8-7): first come, first served; at the
// backend with the fewest requests; never more than containerConcurrency at one. Its parts have no locks of their own.
type Pool struct {
	pools  *Pools
	key    routing.Key
	tenant *fairness.Tenant
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
	burst     *float64
	owner     owner
	backends  backends
	queue     queue
	closed    bool
	coldStart coldStart
	// recorded is the cold start that a request began, until its response starts, or nil.
	recorded *ColdStart
	usage    usage
	// reported is true if the next report includes the pool.
	reported bool
}

func newPool(key routing.Key, pools *Pools) *Pool {
	now := pools.options.Clock.Now()
	p := &Pool{
		pools: pools, key: key, tenant: pools.options.Fairness.Tenant(key.Namespace), limit: math.MaxInt,
		backends: newBackends(pools.options.Clock), usage: usage{sampled: now, changed: now},
	}
	p.owner = owner{owners: pools.options.Owners, key: key, learned: p.learn}
	return p
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
	owner = p.owner.other.Load()
	return owner, owner != nil
}

// Series returns the series of the Revision, or nil if that is unknown.
func (p *Pool) Series() *Series {
	if series := p.series.Load(); series != nil {
		return series
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision := p.revision.Load(); revision != nil && p.series.Load() == nil {
		p.series.Store(p.pools.instruments.series(revision))
	}
	return p.series.Load()
}

// Request returns a new request at the pool.
func (p *Pool) Request() Request { return Request{pool: p} }

// InFlight returns the requests in flight by backend; owned is true if this replica owns the Revision and may send more.
func (p *Pool) InFlight() (requests map[string]int, owned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backends.requests(), p.limit < math.MaxInt && p.owner.other.Load() == nil && !p.owner.suspended()
}

// Drained reports whether a backend gets no more requests and has only long-lived ones, and whether it is known. changed is
// closed when this may be different.
func (p *Pool) Drained(backend string) (drained, known bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backends.drained(backend)
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
}

// setBackends sets the backends. The function that it returns calls Options.Drained and Options.Activate, which need that
// no lock is held.
func (p *Pool) setBackends(instances []workload.Instance) (notify func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	drained := p.backends.set(instances, p.pools.options.Seed)
	p.dispatch()
	waits := p.queue.length > 0 && len(p.backends.ready) == 0
	if waits {
		p.beginColdStart()
	}
	return func() {
		for _, b := range drained {
			p.pools.options.Drained(p.key, b.name)
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
}

// locate determines the owner. p.mu is held.
func (p *Pool) locate() {
	if p.owner.locate(p.limit < math.MaxInt) {
		p.queue.flush(Grant{Outcome: Moved})
		p.observeQueue()
		p.coldStart = coldStart{}
		p.cancelRecorded()
	}
	p.dispatch()
}

// suspend rejects the requests that wait, if this replica owns the Revision and its standing has lapsed.
func (p *Pool) suspend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owner.suspended() {
		p.queue.flush(Grant{Outcome: Rejected, Rejection: Suspended})
		p.observeQueue()
		p.coldStart = coldStart{}
		p.cancelRecorded()
	}
}

// limitedInFlight reports whether the Revision has containerConcurrency and requests in flight.
func (p *Pool) limitedInFlight() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limit < math.MaxInt && len(p.backends.requests()) > 0
}

// learn records a round of an inquiry, and reports whether to go on.
func (p *Pool) learn(generation int, round ownership.Round) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.owner.learn(generation, round) {
		return false
	}
	p.dispatch()
	return p.owner.claim.Continue(p.queue.length > 0)
}

// close ends the pool unless there is a backend or a request at one. Requests that wait are rejected.
func (p *Pool) close() (closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.backends.empty() {
		return false
	}
	p.closed = true
	p.queue.flush(Grant{Outcome: Rejected, Rejection: revisionGone})
	p.observeQueue()
	return true
}

// retry grants a backend that was avoided.
func (p *Pool) retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dispatch()
}

// release ends a request at a backend. It reports whether the backend has drained thereby, for unlock. p.mu is held.
func (p *Pool) release(b *Backend) (drained bool) {
	drained = p.backends.release(b)
	p.dispatch()
	if p.backends.empty() {
		// The lock of Pools comes before the lock of a pool.
		go p.pools.drop(p)
	}
	return drained
}

// unlock unlocks the pool after a change of a backend, which may have drained thereby.
func (p *Pool) unlock(b *Backend, drained bool) {
	p.mu.Unlock()
	if drained {
		p.pools.options.Drained(p.key, b.name)
	}
}

// choose grants a request a backend, or returns nil. p.mu is held.
func (p *Pool) choose() *Backend {
	if p.revision.Load() == nil || !p.owner.usable() {
		return nil
	}
	return p.backends.choose(p.limit, &p.owner.claim)
}

// usable returns the number of backends that accept requests. p.mu is held.
func (p *Pool) usable() int {
	if p.revision.Load() == nil {
		return 0
	}
	return p.backends.usable()
}

// burstCapacity returns the target burst capacity of the Revision. p.mu is held.
func (p *Pool) burstCapacity() float64 {
	if p.burst == nil {
		return p.pools.options.TargetBurstCapacity()
	}
	return *p.burst
}

// dispatch grants backends to requests that wait. p.mu is held.
func (p *Pool) dispatch() {
	if p.queue.length == 0 && !p.queue.large {
		return
	}
	for p.queue.first != nil {
		b := p.choose()
		if b == nil {
			break
		}
		p.queue.grant(Grant{Backend: b, Term: p.owner.term})
		p.endPhase(starting)
		p.grantRecorded(b)
	}
	p.shrinkQueue()
}

// wait waits until a request is granted a backend or ctx ends.
func (p *Pool) wait(ctx context.Context, in *waiting) Grant {
	select {
	case grant := <-in.granted:
		return grant
	case <-ctx.Done():
	}
	p.mu.Lock()
	if in.queued {
		p.queue.remove(in)
		if p.queue.length == 0 {
			// No request waits for its end.
			p.coldStart.cancel()
			p.cancelRecorded()
		}
		p.shrinkQueue()
		p.mu.Unlock()
	} else if grant := <-in.granted; grant.Outcome == Granted {
		// It was granted at this moment: the backend is for the next request.
		p.unlock(grant.Backend, p.release(grant.Backend))
	} else {
		p.mu.Unlock()
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return Grant{Outcome: Rejected, Rejection: serving.TimedOut, Err: cause}
	}
	return Grant{Outcome: Canceled, Err: cause}
}

// shrinkQueue ends the large limit of the queue once it is short enough. p.mu is held.
func (p *Pool) shrinkQueue() {
	p.queue.shrink(p.limit, p.usable())
	p.observeQueue()
}

// observeQueue publishes the length of the queue. p.mu is held.
func (p *Pool) observeQueue() { p.series.Load().observeQueue(p.queue.length) }

// beginColdStart notes that requests wait without a backend. It reports whether a cold start begins thereby. p.mu is held.
func (p *Pool) beginColdStart() bool {
	p.queue.large = true
	return p.coldStart.begin(p.pools.options.Clock.Now())
}

// endPhase ends a phase of a cold start, if there is one in this phase. p.mu is held.
func (p *Pool) endPhase(ph phase) {
	if p.coldStart == (coldStart{}) {
		return
	}
	if ph == starting {
		// A backend may be ready before Options.Activate returns.
		p.endPhase(scheduling)
	}
	if took, ok := p.coldStart.end(ph, p.pools.options.Clock.Now()); ok {
		p.series.Load().observePhase(ph, took)
	}
}
