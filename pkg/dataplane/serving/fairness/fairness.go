package gateway

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
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

const (
	// maxInFlight bounds the requests in a gateway, which are as many as memory allows but not less than minInFlight.
	// Beyond it, a namespace that has more than its share gets no more.
	minInFlight, maxInFlight = 1 << 10, 1 << 16
	// unlimited is the limit of a tenant that is not held back.
	unlimited = math.MaxInt64
	// activeTurns is for how many intervals a namespace without requests counts as one of those that share.
	activeTurns = int64(flow.ActiveFor / flow.ThrottleInterval)
	// leastRate is how many requests a tenant gets answered per second and processor, at least: so that one whose
	// requests take long is not kept to a few of them.
	leastRate = 1000
	// weight is that of a turn in averages.
	weight = 0.05
	// releasedAt is the limit from which on a tenant is not held back.
	releasedAt = 1 << 12
)

var overShare = &http1.Refusal{Status: http.StatusServiceUnavailable, Body: "the namespace has more than its share of requests", RetryAfter: time.Second}

// fairness keeps one namespace's flood of requests from making another's slow. As long as there are processors for
// all, it does nothing. When what is to run waits for one, those of several namespaces that send more than others get
// fewer and fewer requests forwarded at a time, until it does not: requests are cheap while they wait, and those of
// other namespaces do not wait behind them.
type fairness struct {
	budget, processors int64
	// total is the number of requests, busy that of tenants which have some.
	total, busy atomic.Int64

	// mu guards the fields below.
	mu      sync.Mutex
	tenants map[string]*tenant
	// awake are the tenants that have, or had of late, requests.
	awake []*tenant
	turn  int64
}

// tenant is the requests to the revisions of one namespace.
type tenant struct {
	fairness *fairness
	name     string
	// inFlight counts the requests, forwarding those that are on their way to an answer; begun those since the last
	// turn, answered those whose answers began since then.
	inFlight, forwarding, begun, answered atomic.Int64
	// limit bounds forwarding.
	limit   atomic.Int64
	waiting atomic.Int64
	listed  atomic.Bool

	// The fields below are guarded by fairness.mu: refs counts the pools, busy is the latest turn with requests; rate
	// and level are averages of answered per second, and of forwarding.
	refs        int
	busy        int64
	rate, level float64

	// mu guards queue.
	mu    sync.Mutex
	queue []chan struct{}
}

// newFairness returns a fairness for a process that may hold so many bytes for requests.
func newFairness(memory int64) *fairness {
	return &fairness{budget: min(max(memory/requestSize, minInFlight), maxInFlight), processors: int64(goruntime.GOMAXPROCS(0)), tenants: map[string]*tenant{}}
}

// tenant returns that of a namespace, to be released.
func (f *fairness) tenant(namespace string) *tenant {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.tenants[namespace]
	if t == nil {
		t = &tenant{fairness: f, name: namespace}
		t.limit.Store(unlimited)
		f.tenants[namespace] = t
	}
	t.refs++
	return t
}

// release forgets a tenant that nobody needs any more.
func (f *fairness) release(t *tenant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.refs--; t.refs == 0 {
		delete(f.tenants, t.name)
	}
}

// admit counts a request until done, or refuses it.
func (t *tenant) admit() *http1.Refusal {
	f := t.fairness
	n := t.inFlight.Add(1)
	if n == 1 {
		f.busy.Add(1)
		if !t.listed.Load() {
			f.wake(t)
		}
	}
	if total := f.total.Add(1); total > f.budget && n > f.budget/max(f.busy.Load(), 1) {
		t.done()
		return overShare
	}
	t.begun.Add(1)
	return nil
}

// done uncounts a request.
func (t *tenant) done() {
	if t.inFlight.Add(-1) == 0 {
		t.fairness.busy.Add(-1)
	}
	t.fairness.total.Add(-1)
}

func (f *fairness) wake(t *tenant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !t.listed.Swap(true) {
		t.busy = f.turn
		f.awake = append(f.awake, t)
	}
}

// tryEnter has a request forwarded, until leave, if it need not wait.
func (t *tenant) tryEnter() bool {
	if t.forwarding.Add(1) <= t.limit.Load() {
		return true
	}
	t.leave()
	return false
}

// enter waits until a request may be forwarded, first come, first served. It returns false if ctx ends before.
func (t *tenant) enter(ctx context.Context) bool {
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

// leave ends what tryEnter or enter began.
func (t *tenant) leave() {
	t.forwarding.Add(-1)
	if t.waiting.Load() > 0 {
		t.grant()
	}
}

// grant lets those go that may.
func (t *tenant) grant() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.grantLocked()
}

func (t *tenant) grantLocked() {
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

// run adjusts the limits until ctx ends.
func (f *fairness) run(ctx context.Context) {
	gauge := pressure.New()
	defer gauge.Close()
	last := time.Now()
	ticker := time.NewTicker(flow.ThrottleInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			f.adjust(false, 0)
			return
		case <-ticker.C:
			now := time.Now()
			f.adjust(gauge.Scarce(), now.Sub(last))
			last = now
		}
	}
}

// adjust decides who is held back, by whether processors are scarce, a time after it did so before. Without time, nobody is.
func (f *fairness) adjust(scarce bool, elapsed time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn++
	var sum int64
	kept := f.awake[:0]
	for _, t := range f.awake {
		if t.begun.Load() > 0 || t.inFlight.Load() > 0 {
			t.busy = f.turn
		}
		if f.turn-t.busy > activeTurns {
			t.limit.Store(unlimited)
			t.listed.Store(false)
			continue
		}
		sum += t.begun.Load()
		kept = append(kept, t)
	}
	clear(f.awake[len(kept):])
	f.awake = kept
	for _, t := range f.awake {
		begun := t.begun.Swap(0)
		if elapsed > 0 {
			t.rate += weight * (float64(t.answered.Swap(0))/elapsed.Seconds() - t.rate)
			t.level += weight * (float64(t.forwarding.Load()) - t.level)
		}
		t.adjust(scarce, begun*int64(len(f.awake)) > sum, elapsed == 0 || len(f.awake) < 2)
	}
}

// adjust sets the limit: pressed tells that processors are scarce, most that the tenant has more than an equal share
// of the requests, free that there is nobody to share with.
func (t *tenant) adjust(pressed, most, free bool) {
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

// least is the limit that is not undercut: by how long a request takes, so many that leastRate is possible.
func (t *tenant) least() int64 {
	processors := t.fairness.processors
	if t.rate < 1 {
		return unlimited
	}
	return max(processors, int64(min(leastRate*float64(processors)*t.level/t.rate, releasedAt)))
}

// tryEnter has the exchange forwarded, if it need not wait for others of its namespace.
func (x *exchange) tryEnter() bool {
	x.entered = x.entered || x.pool.tenant.tryEnter()
	return x.entered
}

// enter waits until the exchange may be forwarded, or ctx ends.
func (x *exchange) enter(ctx context.Context) {
	x.entered = x.entered || x.pool.tenant.enter(ctx)
}

// pass has the exchange forwarded that has waited for an instance: nobody else could use that meanwhile.
func (x *exchange) pass() {
	if !x.entered {
		x.pool.tenant.forwarding.Add(1)
		x.entered = true
	}
}

// leave ends that: its answer begins, or there is none.
func (x *exchange) leave() {
	if x.entered {
		x.entered = false
		x.pool.tenant.answered.Add(1)
		x.pool.tenant.leave()
	}
}
