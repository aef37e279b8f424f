package flow

import (
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
	// MaxWaiting bounds the waiting requests of one tenant; 0 disables the limit.
	MaxWaiting int
	// Scarce reports whether processors are scarce, which enables the control law. The law allows each tenant at least
	// MinPerTenant requests in flight. Nil disables it.
	Scarce       func() bool
	MinPerTenant int
}

// Queue is a semaphore with fair queueing: waiting tenants are served round-robin, independent of their numbers of waiting
// requests. It is safe for concurrent use.
type Queue struct {
	options QueueOptions
	// mu guards the fields below: the number of requests that may start, the numbers in flight and the waiting requests by
	// tenant.
	mu       sync.Mutex
	free     int
	inFlight map[string]int
	waiting  map[string][]chan struct{}
	// order lists the tenants with waiting requests; the first is served next.
	order []string
	// active holds the tenants that share, adjusted is the time when their windows were last adjusted.
	active   map[string]*activity
	adjusted time.Time
}

// activity is the recent use by one tenant.
type activity struct {
	last time.Time
	// observed counts the requests since the last adjustment, window bounds the requests in flight.
	observed, window int
}

// NewQueue returns an empty Queue.
func NewQueue(o QueueOptions) *Queue {
	return &Queue{
		options: o, free: o.Concurrency,
		inFlight: map[string]int{}, waiting: map[string][]chan struct{}{}, active: map[string]*activity{},
	}
}

// Observe counts a request of a tenant for the control law, whether or not Acquire is called for it.
func (q *Queue) Observe(tenant string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	a := q.active[tenant]
	if a == nil {
		a = &activity{window: q.options.PerTenant}
		q.active[tenant] = a
	}
	a.last = now
	a.observed++
	if now.Sub(q.adjusted) >= ThrottleInterval {
		q.adjusted = now
		q.adjustLocked(now)
	}
}

// adjustLocked sets the windows of the active tenants.
func (q *Queue) adjustLocked(now time.Time) {
	sum := 0
	for tenant, a := range q.active {
		if now.Sub(a.last) > ActiveFor {
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
			aboveShare := a.observed*len(q.active) > sum
			a.window = int(bounds.Next(int64(a.window), int64(q.inFlight[tenant]), scarce, aboveShare))
		}
		a.observed = 0
	}
	q.grantLocked()
}

// Acquire waits until a request of a tenant may start; Release ends it. It returns ErrOverShare if MaxWaiting requests of
// the tenant wait already, and the error of ctx if that is canceled first.
func (q *Queue) Acquire(ctx context.Context, tenant string) error {
	q.mu.Lock()
	if len(q.waiting[tenant]) == 0 && q.mayStartLocked(tenant) {
		q.startLocked(tenant)
		q.mu.Unlock()
		return nil
	}
	if limit := q.options.MaxWaiting; limit > 0 && len(q.waiting[tenant]) >= limit {
		q.mu.Unlock()
		return ErrOverShare
	}
	granted := make(chan struct{})
	if len(q.waiting[tenant]) == 0 {
		q.order = append(q.order, tenant)
	}
	q.waiting[tenant] = append(q.waiting[tenant], granted)
	q.mu.Unlock()
	select {
	case <-granted:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting[tenant], granted); i >= 0 {
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

// mayStartLocked reports whether another request of a tenant may start.
func (q *Queue) mayStartLocked(tenant string) bool {
	window := q.options.PerTenant
	if a := q.active[tenant]; a != nil {
		window = a.window
	}
	return q.free > 0 && q.inFlight[tenant] < window
}

// startLocked counts a request as in flight.
func (q *Queue) startLocked(tenant string) {
	q.free--
	q.inFlight[tenant]++
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
		at := slices.IndexFunc(q.order, q.mayStartLocked)
		if at < 0 {
			return
		}
		next := q.order[at]
		granted := q.waiting[next][0]
		// The tenant moves to the end of the order.
		q.order = append(slices.Delete(q.order, at, at+1), next)
		q.removeLocked(next, 0)
		q.startLocked(next)
		close(granted)
	}
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
