package gateway

import (
	"cmp"
	"hash/maphash"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

const (
	// largeQueue is how many requests may wait for a revision whose ready capacity is below its burst capacity.
	largeQueue = 10_000
	// defaultBurstCapacity is the target burst capacity of revisions where nobody sets one.
	defaultBurstCapacity = 211
	// queueDepth is how many requests may wait per unit of capacity beyond that.
	queueDepth = 10
	// firstAvoid and lastAvoid are how long an instance that took no connection is avoided: twice as long each time.
	firstAvoid, lastAvoid = 20 * time.Millisecond, time.Second
)

var (
	queueFull = &http1.Refusal{Status: http.StatusServiceUnavailable, Body: "pending request queue full", RetryAfter: time.Second}
	noLonger  = &http1.Refusal{Status: http.StatusServiceUnavailable, Body: "revision is gone", RetryAfter: time.Second}
	tooLate   = &http1.Refusal{Status: http.StatusGatewayTimeout, Body: "request timeout"}
)

// instance is one of a revision's. Its pool's lock guards it, besides name and upstream, which do not change.
type instance struct {
	name     string
	upstream *http1.Upstream
	inFlight int
	// longLived counts the requests in flight that do not hold up the end of the instance, see stream.
	longLived int
	// draining tells that it gets no requests, told that the pool's drained was called for it.
	draining, told bool
	// failures counts the connections it did not take since the last request; until avoid it is left alone.
	failures int
	avoid    time.Time
}

// pool has the instances of a revision and the requests that wait for them (serving 8-7): first come, first
// served; to the instance that has the fewest; never more than containerConcurrency at one.
type pool struct {
	gateway  *Gateway
	owners   owners
	key      routing.Key
	clock    clock.PassiveClock
	activate func(routing.Key)
	drained  func(routing.Key, string)
	tenant   *tenant
	// owner is the other replica that the requests are for, or nil where they are for this one.
	owner atomic.Pointer[membership.Member]
	// spec is nil while the revision is unknown: nothing is sent to its instances then.
	spec atomic.Pointer[routing.Revision]
	// series is nil until the first request: most revisions at rest never have one.
	series      atomic.Pointer[series]
	instruments *instruments
	// routes counts the hosts and tags that refer to the pool; the gateway's lock guards it.
	routes int

	// mu guards the fields below.
	mu sync.Mutex
	// limit bounds the requests of one instance.
	limit int
	// burst is the target burst capacity that the Revision sets, or nil if the operator's is in force.
	burst *float64
	all   map[string]*instance
	// gone are those that are no longer, but still have requests.
	gone map[string]*instance
	// ready are those that do not drain; the search for one begins at next.
	ready []*instance
	next  int
	queue queue
	// large is true if the queue has grown under its large limit, which it keeps until it is short enough for the
	// small one: those who wait are no reason to refuse the next when a backend gets ready.
	large  bool
	closed bool
	claim  claim
	// changed, where somebody waits for it, is closed when instances come, go, or have drained.
	changed chan struct{}
	start   coldStart
	usage   usage
	// reported tells that the gateway's next report tells of the pool.
	reported bool
}

func newPool(key routing.Key, g *Gateway) *pool {
	now := g.options.Clock.Now()
	return &pool{
		gateway: g, owners: g, key: key, clock: g.options.Clock, activate: g.options.Activate, drained: g.options.Drained,
		instruments: g.instruments, tenant: g.fairness.tenant(key.Namespace),
		limit: math.MaxInt, all: map[string]*instance{}, gone: map[string]*instance{},
		usage: usage{sampled: now, changed: now},
	}
}

// setSpec makes the revision known, or unknown by nil.
func (p *pool) setSpec(spec *routing.Revision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spec.Store(spec)
	if series := p.series.Load(); series != nil && (spec == nil || !series.same(spec)) {
		series.remove()
		p.series.Store(nil)
	}
	p.limit, p.burst = math.MaxInt, nil
	if spec != nil {
		if spec.ContainerConcurrency > 0 {
			p.limit = spec.ContainerConcurrency
		}
		p.burst = spec.Autoscaling.BurstCapacity
	}
	p.locate()
	p.dispatch()
}

// setInstances says what instances there are. What it returns calls the gateway's owner, which needs no lock held.
func (p *pool) setInstances(instances []workload.Instance) (notify func()) {
	var idle []*instance
	p.mu.Lock()
	before := p.all
	p.all = make(map[string]*instance, len(instances))
	p.ready = p.ready[:0:0]
	for _, in := range instances {
		inst := before[in.Name]
		if inst == nil || inst.upstream.Address() != in.Address {
			inst = p.returned(in)
		} else {
			delete(before, in.Name)
		}
		p.all[in.Name] = inst
		if inst.draining = in.Draining; !inst.draining {
			p.ready = append(p.ready, inst)
			inst.told = false
		}
		if p.tell(inst) {
			idle = append(idle, inst)
		}
	}
	p.permute()
	for name, gone := range before {
		gone.upstream.Close()
		if gone.inFlight > 0 {
			p.gone[name] = gone
		}
	}
	p.note()
	if p.next >= len(p.ready) {
		p.next = 0
	}
	p.dispatch()
	waits := p.queue.length > 0 && len(p.ready) == 0
	if waits {
		p.chill()
	}
	p.mu.Unlock()
	return func() {
		for _, inst := range idle {
			p.drained(p.key, inst.name)
		}
		if waits {
			p.activate(p.key)
		}
	}
}

// returned is an instance that was not there before, or not until just now: then it has the requests that it had.
func (p *pool) returned(in workload.Instance) *instance {
	inst := p.gone[in.Name]
	if inst == nil || inst.upstream.Address() != in.Address {
		return &instance{name: in.Name, upstream: http1.NewUpstream(in.Address)}
	}
	delete(p.gone, in.Name)
	inst.upstream.Reopen()
	return inst
}

// permute puts the instances in an order of this replica's own: each knows the requests only that it sent itself, and
// not all are to send their first ones to the same instance.
func (p *pool) permute() {
	seed := p.gateway.seed
	if seed == (maphash.Seed{}) {
		return
	}
	slices.SortStableFunc(p.ready, func(a, b *instance) int {
		return cmp.Compare(maphash.String(seed, a.name), maphash.String(seed, b.name))
	})
}

// note has those look again who wait for instances to drain.
func (p *pool) note() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// tell says, once, whether the runtime is to be told that an instance has drained.
func (p *pool) tell(inst *instance) bool {
	if !inst.draining || inst.told || !inst.idle() {
		return false
	}
	inst.told = true
	return true
}

// close ends the pool: what waits is refused.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.refuse(noLonger)
	p.mu.Unlock()
	p.gateway.reports.remove(p)
	p.gateway.fairness.release(p.tenant)
}

// refuse has all that wait refused. p.mu is held.
func (p *pool) refuse(refusal *http1.Refusal) {
	for p.queue.first != nil {
		w := p.queue.first
		p.queue.remove(w)
		w.refusal = refusal
		close(w.granted)
	}
	p.observeQueue()
}

// begin counts a request.
func (p *pool) begin(now time.Time) {
	p.mu.Lock()
	if !p.reported {
		p.reported = true
		p.usage.since(p.gateway.reports.add(p, now))
	}
	p.usage.begin(now)
	p.mu.Unlock()
}

// end uncounts a request with its response in progress, which may be nil, and gives back its instance if it has one.
func (p *pool) end(inst *instance, s *stream, now time.Time) {
	p.mu.Lock()
	p.usage.end(now)
	if s != nil {
		s.end(inst)
	}
	drained := false
	if inst != nil {
		inst.failures, inst.avoid = 0, time.Time{}
		drained = p.release(inst)
	}
	p.mu.Unlock()
	if drained {
		p.drained(p.key, inst.name)
	}
}

// release gives a slot back. It tells whether the instance has drained thereby.
func (p *pool) release(inst *instance) bool {
	inst.inFlight--
	p.dispatch()
	drained := p.settle(inst)
	if inst.inFlight == 0 && p.gone[inst.name] == inst {
		delete(p.gone, inst.name)
		if len(p.gone) == 0 {
			// Who holds the lock may not have the pool dropped.
			go p.gateway.emptied(p)
		}
	}
	return drained
}

// settle takes note of an instance that may be idle now. It reports whether the runtime is to be told that it has drained.
func (p *pool) settle(inst *instance) bool {
	if !inst.idle() {
		return false
	}
	if p.gone[inst.name] == inst {
		p.note()
	}
	if p.all[inst.name] != inst || !p.tell(inst) {
		return false
	}
	p.note()
	return true
}

// unreachable gives back the slot of an instance that took no connection, and avoids that for a while.
func (p *pool) unreachable(inst *instance) {
	now := p.clock.Now()
	p.mu.Lock()
	if !now.Before(inst.avoid) {
		inst.failures++
		pause := backoff.Delay(inst.failures, firstAvoid, lastAvoid)
		inst.avoid = now.Add(pause)
		time.AfterFunc(pause, p.retry)
	}
	drained := p.release(inst)
	p.mu.Unlock()
	if drained {
		p.drained(p.key, inst.name)
	}
}

// retry lets requests go to an instance that was avoided.
func (p *pool) retry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dispatch()
}

// tryAcquire takes a slot of an instance if nobody waits for one.
func (p *pool) tryAcquire() *instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.length > 0 {
		return nil
	}
	return p.pick()
}

// pick takes a slot of the instance that has the fewest requests, of several such of the next in turn.
func (p *pool) pick() *instance {
	if p.spec.Load() == nil || !p.claimed() {
		return nil
	}
	var best *instance
	fewest, at := p.limit, 0
	for i := range p.ready {
		j := p.next + i
		if j >= len(p.ready) {
			j -= len(p.ready)
		}
		inst := p.ready[j]
		requests := inst.inFlight
		if p.claim.open {
			requests += p.claim.others[inst.name]
		}
		if requests >= fewest || p.avoids(inst) {
			continue
		}
		best, fewest, at = inst, requests, j
		if fewest == 0 {
			break
		}
	}
	if best == nil {
		return nil
	}
	best.inFlight++
	if p.next = at + 1; p.next >= len(p.ready) {
		p.next = 0
	}
	return best
}

func (p *pool) avoids(inst *instance) bool {
	return !inst.avoid.IsZero() && p.clock.Now().Before(inst.avoid)
}

// usable is the number of instances that take requests.
func (p *pool) usable() int {
	if p.spec.Load() == nil {
		return 0
	}
	n := 0
	for _, inst := range p.ready {
		if !p.avoids(inst) {
			n++
		}
	}
	return n
}

// sample returns what is measured of the pool, see usage.sample, and the number of requests that wait.
func (p *pool) sample(now time.Time) (concurrency, rps float64, waiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	concurrency, rps = p.usage.sample(now)
	return concurrency, rps, p.queue.length
}

// instances is the number of instances, with those that drain, or are gone and have requests.
func (p *pool) instances() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all) + len(p.gone)
}
