package flow

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// ErrOverShare is returned for a request of a tenant that has MaxWaiting requests waiting.
var ErrOverShare = errors.New("tenant exceeds its share of waiting requests")

// QueueOptions are the limits of a Queue.
type QueueOptions struct {
	// Concurrency bounds the requests in flight, PerTenant the requests in flight of one tenant. If PerTenant is smaller, other
	// tenants start at once, or when the next request ends.
	Concurrency, PerTenant int
	// PerSharing bounds the requests in flight of one tenant while several share; 0 means PerTenant.
	PerSharing int
	// MaxWaiting bounds the waiting requests of one tenant; 0 disables the limit.
	MaxWaiting int
	// Scarce reports whether processors are scarce, which enables the control law. The law allows each tenant at least
	// MinPerTenant requests in flight. Nil disables it.
	Scarce       func() bool
	MinPerTenant int
	// ActiveFor is the time for which a tenant shares after its last request; 0 means ActiveFor.
	ActiveFor time.Duration
}

// Queue is a semaphore with fair queueing by cost (start-time fair queueing): the next request to start belongs to the waiting tenant
// whose requests have had the least cost since others began to wait. A tenant that begins to send is first. It is safe for concurrent
// use.
type Queue struct {
	options QueueOptions
	// mu guards the fields below: the number of requests that may start, the numbers in flight and the waiting requests by
	// tenant.
	mu       sync.Mutex
	free     int
	inFlight map[string]int
	waiting  map[string][]*waiter
	// order lists the tenants with waiting requests, the one that started a request last at the end.
	order []string
	// virtual is the virtual time: the virtual start of the request that started last.
	virtual Cost
	// active has the tenants that share, adjusted is the time of the last adjustment of their windows.
	active   map[string]*activity
	adjusted time.Time
}

// activity is the recent use by one tenant.
type activity struct {
	last time.Time
	// observed is the cost of the requests since the last adjustment, window bounds the requests in flight.
	observed Cost
	window   int
	// finish is the virtual finish of the request that started last: the earliest virtual start of the next one.
	finish Cost
}

// waiter is a waiting request.
type waiter struct {
	cost    Cost
	granted chan struct{}
}

// NewQueue returns an empty Queue.
func NewQueue(o QueueOptions) *Queue {
	return &Queue{
		options: o, free: o.Concurrency,
		inFlight: map[string]int{}, waiting: map[string][]*waiter{}, active: map[string]*activity{},
	}
}

// Observe adds a cost to the use by a tenant, for the control law, whether or not Acquire is called for it.
func (q *Queue) Observe(tenant string, cost Cost) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	a := q.active[tenant]
	if a == nil {
		a = &activity{window: q.options.PerTenant}
		q.active[tenant] = a
	}
	a.last = now
	a.observed += cost
	if now.Sub(q.adjusted) >= ThrottleInterval {
		q.adjusted = now
		q.adjustLocked(now)
	}
}

// adjustLocked sets the windows of the active tenants.
func (q *Queue) adjustLocked(now time.Time) {
	var sum Cost
	for tenant, a := range q.active {
		if now.Sub(a.last) > cmp.Or(q.options.ActiveFor, ActiveFor) {
			delete(q.active, tenant)
			continue
		}
		sum += a.observed
	}
	bounds := Window{Min: int64(q.options.MinPerTenant), Max: int64(q.options.PerTenant)}
	alone := len(q.active) < 2
	scarce := !alone && q.options.Scarce != nil && q.options.Scarce()
	for tenant, a := range q.active {
		if alone {
			a.window = q.options.PerTenant
		} else {
			a.window = int(bounds.Next(int64(a.window), int64(q.inFlight[tenant]), scarce, a.observed.AboveShare(sum, len(q.active))))
		}
		a.observed = 0
	}
	q.grantLocked()
}

// Acquire waits until a request of a tenant with a cost may start; Release ends it. It returns ErrOverShare if MaxWaiting requests of
// the tenant wait already, and the error of ctx if that is canceled first.
func (q *Queue) Acquire(ctx context.Context, tenant string, cost Cost) error {
	q.mu.Lock()
	if len(q.waiting[tenant]) == 0 && q.mayStartLocked(tenant) {
		q.startLocked(tenant, cost)
		q.mu.Unlock()
		return nil
	}
	if limit := q.options.MaxWaiting; limit > 0 && len(q.waiting[tenant]) >= limit {
		q.mu.Unlock()
		return ErrOverShare
	}
	w := &waiter{cost: cost, granted: make(chan struct{})}
	if len(q.waiting[tenant]) == 0 {
		q.order = append(q.order, tenant)
	}
	q.waiting[tenant] = append(q.waiting[tenant], w)
	q.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting[tenant], w); i >= 0 {
		q.removeLocked(tenant, i)
	} else {
		// It was granted at the same time.
		q.releaseLocked(tenant)
	}
	return ctx.Err()
}

// Release ends a request for which Acquire returned nil.
func (q *Queue) Release(tenant string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.releaseLocked(tenant)
}

// Presses reports whether requests of a tenant wait, while requests of another tenant that shares do not.
func (q *Queue) Presses(tenant string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting[tenant]) == 0 {
		return false
	}
	for other := range q.active {
		if len(q.waiting[other]) == 0 {
			return true
		}
	}
	return false
}

// mayStartLocked reports whether another request of a tenant may start.
func (q *Queue) mayStartLocked(tenant string) bool {
	window := q.options.PerTenant
	if a := q.active[tenant]; a != nil {
		window = a.window
	}
	if limit := q.options.PerSharing; limit > 0 && len(q.active) > 1 {
		window = min(window, limit)
	}
	return q.free > 0 && q.inFlight[tenant] < window
}

// startLocked counts a request as in flight and advances the virtual time.
func (q *Queue) startLocked(tenant string, cost Cost) {
	q.free--
	q.inFlight[tenant]++
	q.virtual = q.virtualStartLocked(tenant)
	if a := q.active[tenant]; a != nil {
		a.finish = q.virtual + cost
	}
}

// virtualStartLocked returns the virtual start of the next request of a tenant.
func (q *Queue) virtualStartLocked(tenant string) Cost {
	if a := q.active[tenant]; a != nil {
		return max(q.virtual, a.finish)
	}
	return q.virtual
}

// releaseLocked ends a request and starts waiting ones.
func (q *Queue) releaseLocked(tenant string) {
	q.free++
	if q.inFlight[tenant]--; q.inFlight[tenant] == 0 {
		delete(q.inFlight, tenant)
	}
	q.grantLocked()
}

// grantLocked starts the waiting requests that may start.
func (q *Queue) grantLocked() {
	for q.free > 0 {
		at := q.nextLocked()
		if at < 0 {
			return
		}
		next := q.order[at]
		w := q.waiting[next][0]
		// The tenant moves to the end of the order.
		q.order = append(slices.Delete(q.order, at, at+1), next)
		q.removeLocked(next, 0)
		q.startLocked(next, w.cost)
		close(w.granted)
	}
}

// nextLocked returns the index in order of the tenant that may start a request with the earliest virtual start, -1 if none may.
func (q *Queue) nextLocked() int {
	next, earliest := -1, Cost(0)
	for i, tenant := range q.order {
		if start := q.virtualStartLocked(tenant); q.mayStartLocked(tenant) && (next < 0 || start < earliest) {
			next, earliest = i, start
		}
	}
	return next
}

// removeLocked removes the waiting request i of a tenant.
func (q *Queue) removeLocked(tenant string, i int) {
	if rest := slices.Delete(q.waiting[tenant], i, i+1); len(rest) > 0 {
		q.waiting[tenant] = rest
		return
	}
	delete(q.waiting, tenant)
	q.order = slices.DeleteFunc(q.order, func(other string) bool { return other == tenant })
}
