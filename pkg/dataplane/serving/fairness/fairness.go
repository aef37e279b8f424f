// Package fairness keeps the requests of one namespace from delaying other requests: it bounds the number of requests of a
// namespace in the gateway and, while processors are scarce, the number of them that are forwarded at a time.
package fairness

import (
	"context"
	"math"
	"net/http"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow/pressure"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

const (
	// minInFlight and maxInFlight bound the limit on requests in a gateway, which is derived from memory. Beyond the
	// limit, requests of a namespace with more than its share are rejected.
	minInFlight, maxInFlight = 1 << 10, 1 << 16
	// requestSize is the memory of a request that fits into buffers of the usual sizes, in bytes.
	requestSize = 16 << 10
	// unlimited is the limit of a tenant that is not throttled.
	unlimited = math.MaxInt64
	// activeTurns is the number of intervals for which a namespace without requests still counts as active.
	activeTurns = int64(flow.ActiveFor / flow.ThrottleInterval)
	// leastRate is the minimum number of responses per second and processor for a tenant, so that a tenant with slow
	// requests is not limited to a few of them.
	leastRate = 1000
	// weight is the weight of a turn in averages.
	weight = 0.05
	// releasedAt is the limit from which a tenant is no longer throttled.
	releasedAt = 1 << 12
)

// OverShare rejects a request of a namespace that has more than its share.
var OverShare = &serving.Rejection{Status: http.StatusServiceUnavailable, Body: "the namespace has more than its share of requests", RetryAfter: time.Second}

// Fairness admits requests by namespace. As long as processors are idle, it only counts them. When work waits for a
// processor, Fairness reduces the number of concurrently forwarded requests of the namespaces whose requests cost more
// than an equal share, until work no longer waits. Waiting requests are cheap, and other namespaces do not wait behind
// them.
type Fairness struct {
	budget, processors int64
	// total is the number of requests, busy the number of tenants that have some.
	total, busy atomic.Int64
	// begun has a value when a tenant woke and all others slept.
	begun chan struct{}

	// mu guards the fields below.
	mu      sync.Mutex
	tenants map[string]*Tenant
	// awake are the tenants with current or recent requests.
	awake []*Tenant
	turn  int64
}

// Tenant is the requests to the Revisions of one namespace.
type Tenant struct {
	fairness *Fairness
	name     string
	// inFlight counts the requests, forwarding the requests between Enter and Exit. cost is the cost since the last turn,
	// answered counts the responses that started since then.
	inFlight, forwarding, cost, answered atomic.Int64
	// limit bounds forwarding.
	limit   atomic.Int64
	waiting atomic.Int64
	listed  atomic.Bool

	// The fields below are guarded by fairness.mu: refs counts the calls of Tenant, busy is the latest turn with requests;
	// rate and level are averages of answered per second, and of forwarding.
	refs        int
	busy        int64
	rate, level float64

	// mu guards queue.
	mu    sync.Mutex
	queue []chan struct{}
}

// New returns a Fairness for a process with a budget of memory for requests, in bytes.
func New(memory int64) *Fairness {
	return &Fairness{
		budget: min(max(memory/requestSize, minInFlight), maxInFlight), processors: int64(goruntime.GOMAXPROCS(0)),
		begun: make(chan struct{}, 1), tenants: map[string]*Tenant{},
	}
}

// Tenant returns the tenant of a namespace, until Release.
func (f *Fairness) Tenant(namespace string) *Tenant {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenants[namespace]
	if t == nil {
		t = &Tenant{fairness: f, name: namespace}
		t.limit.Store(unlimited)
		f.tenants[namespace] = t
	}
	t.refs++
	return t
}

// Release ends the use of a tenant.
func (f *Fairness) Release(t *Tenant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.refs--; t.refs == 0 {
		delete(f.tenants, t.name)
	}
}

// Admit admits a request until Done, and reports whether it may enter; OverShare rejects it otherwise.
func (t *Tenant) Admit() bool {
	f := t.fairness
	n := t.inFlight.Add(1)
	if n == 1 {
		f.busy.Add(1)
		if !t.listed.Load() {
			f.wake(t)
		}
	}
	if total := f.total.Add(1); total > f.budget && n > f.budget/max(f.busy.Load(), 1) {
		t.Done()
		return false
	}
	t.Charge(1)
	return true
}

// Charge adds a cost to the use by the tenant, beyond the cost of a request with a small body.
func (t *Tenant) Charge(cost flow.Cost) { t.cost.Add(int64(cost)) }

// Done ends an admitted request.
func (t *Tenant) Done() {
	if t.inFlight.Add(-1) == 0 {
		t.fairness.busy.Add(-1)
	}
	t.fairness.total.Add(-1)
}

func (f *Fairness) wake(t *Tenant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.listed.Swap(true) {
		return
	}
	t.busy = f.turn
	f.awake = append(f.awake, t)
	if len(f.awake) == 1 {
		select {
		case f.begun <- struct{}{}:
		default:
		}
	}
}

// Waiter is a request that enters.
type Waiter interface {
	// Wait is called if the request has to wait, until ctx is canceled. It is followed by stop.
	Wait() (ctx context.Context, stop context.CancelFunc)
}

// Enter starts to forward a request, until Exit. Requests of a throttled tenant wait in the order of their arrival. It
// reports false if the request stopped waiting.
func (t *Tenant) Enter(w Waiter) bool {
	if t.forwarding.Add(1) <= t.limit.Load() {
		return true
	}
	t.uncount()
	ctx, stop := w.Wait()
	defer stop()
	return t.wait(ctx)
}

// Pass is Enter for a request that holds a backend. It does not wait, because the backend would be unused meanwhile.
func (t *Tenant) Pass() { t.forwarding.Add(1) }

func (t *Tenant) wait(ctx context.Context) bool {
	granted := make(chan struct{})
	t.mu.Lock()
	t.queue = append(t.queue, granted)
	t.waiting.Add(1)
	t.grantLocked()
	t.mu.Unlock()
	select {
	case <-granted:
		return true
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.queue, granted); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
		t.waiting.Add(-1)
		return false
	}
	return true
}

// Exit reverts Enter or Pass: the response starts, or the request waits or ends.
func (t *Tenant) Exit() {
	t.answered.Add(1)
	t.uncount()
}

func (t *Tenant) uncount() {
	t.forwarding.Add(-1)
	if t.waiting.Load() > 0 {
		t.grant()
	}
}

// grant lets requests enter up to the limit.
func (t *Tenant) grant() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.grantLocked()
}

func (t *Tenant) grantLocked() {
	n := 0
	for n < len(t.queue) && t.forwarding.Load() < t.limit.Load() {
		t.forwarding.Add(1)
		t.waiting.Add(-1)
		close(t.queue[n])
		n++
	}
	if n > 0 {
		t.queue = slices.Delete(t.queue, 0, n)
	}
}

// Run adjusts the limits until ctx is canceled, as long as tenants are awake.
func (f *Fairness) Run(ctx context.Context) {
	gauge := pressure.New()
	defer gauge.Close()
	last := time.Now()
	ticker := time.NewTicker(flow.ThrottleInterval)
	defer ticker.Stop()
	ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			f.adjust(false, 0)
			return
		case <-f.begun:
			// The gauge measures the time since its previous call.
			gauge.Scarce()
			last = time.Now()
			ticker.Reset(flow.ThrottleInterval)
		case <-ticker.C:
			now := time.Now()
			if !f.adjust(gauge.Scarce(), now.Sub(last)) {
				ticker.Stop()
			}
			last = now
		}
	}
}

// adjust throttles tenants if processors are scarce, and reports whether any is awake. elapsed is the time since the previous call; 0 releases
// all tenants.
func (f *Fairness) adjust(scarce bool, elapsed time.Duration) (awake bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn++
	var sum flow.Cost
	kept := f.awake[:0]
	for _, t := range f.awake {
		if t.cost.Load() > 0 || t.inFlight.Load() > 0 {
			t.busy = f.turn
		}
		if f.turn-t.busy > activeTurns {
			t.limit.Store(unlimited)
			t.listed.Store(false)
			continue
		}
		sum += flow.Cost(t.cost.Load())
		kept = append(kept, t)
	}
	clear(f.awake[len(kept):])
	f.awake = kept
	for _, t := range f.awake {
		cost := flow.Cost(t.cost.Swap(0))
		if elapsed > 0 {
			t.rate += weight * (float64(t.answered.Swap(0))/elapsed.Seconds() - t.rate)
			t.level += weight * (float64(t.forwarding.Load()) - t.level)
		}
		t.adjust(scarce, cost.AboveShare(sum, len(f.awake)), elapsed == 0 || len(f.awake) < 2)
	}
	return len(f.awake) > 0
}

// adjust sets the limit: pressed is true if processors are scarce, most if the tenant's cost exceeds an equal share, free
// if no other tenant is active.
func (t *Tenant) adjust(pressed, most, free bool) {
	limit := t.limit.Load()
	switch {
	case free:
		limit = unlimited
	case pressed || limit < unlimited:
		limit = flow.Window{Min: t.least(), Max: releasedAt}.Next(limit, t.forwarding.Load(), pressed, most)
		if !pressed && limit >= releasedAt {
			limit = unlimited
		}
	}
	t.limit.Store(limit)
	if t.waiting.Load() > 0 {
		t.grant()
	}
}

// least returns the minimum limit: the number of requests that allows leastRate at their current duration.
func (t *Tenant) least() int64 {
	processors := t.fairness.processors
	if t.rate < 1 {
		return unlimited
	}
	return max(processors, int64(min(leastRate*float64(processors)*t.level/t.rate, releasedAt)))
}
