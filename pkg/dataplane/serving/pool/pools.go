// Package pool keeps the backends of each Revision with the queue of requests that wait for one: it chooses the backend of
// a request, bounds the requests at each, and measures what the autoscaler decides by.
//
// Pools is the set of all; a request begins at its Pool, acquires a Backend, and ends:
//
//	request := pool.Request()
//	request.Begin()
//	grant := request.Acquire(waiter)
//	request.Streaming(endless) // if the response takes a while
//	request.End(now)
package pool

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/fairness"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// Options configure Pools. All are required but Register and Seed.
type Options struct {
	// Activate is called when a request begins to wait at a Revision without ready backend, by the goroutine of the request.
	// It must not block.
	Activate func(revision routing.Key)
	// Drained is called once when a draining backend has only long-lived requests left. It must not block.
	Drained func(revision routing.Key, backend string)
	// TargetBurstCapacity returns the target burst capacity of Revisions that set none: 0 is none, -1 is any.
	TargetBurstCapacity func() float64
	Clock               clock.PassiveClock
	Fairness            *fairness.Fairness
	Owners              Owners
	// Seed makes the order of backends differ between replicas. It is zero if there is only one.
	Seed maphash.Seed
	// Register registers the metrics. Nil disables it.
	Register func(...metrics.Registerable)
}

// Pools is the set of pools. A pool exists while its Revision or a backend is known, and while it is retained.
type Pools struct {
	options     Options
	instruments *instruments
	reports     reports
	coldStarts  coldStarts

	// mu guards pools. It is locked before the lock of a pool.
	mu    sync.Mutex
	pools map[routing.Key]*Pool
}

// New returns an empty set.
func New(options Options) *Pools {
	return &Pools{
		options: options, instruments: newInstruments(options.Register), reports: reports{pools: map[*Pool]struct{}{}},
		pools: map[routing.Key]*Pool{},
	}
}

// Retain returns the pool of a Revision, which exists until Release.
func (s *Pools) Retain(key routing.Key) *Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pool(key)
	p.references++
	return p
}

// Release ends what Retain began.
func (s *Pools) Release(p *Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.references--
	s.dropLocked(p)
}

// Get returns the pool of a Revision; ok is false if it does not exist.
func (s *Pools) Get(key routing.Key) (p *Pool, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok = s.pools[key]
	return p, ok
}

// SetRevision adds or changes a Revision.
func (s *Pools) SetRevision(revision *routing.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool(revision.Key).setRevision(revision)
}

// DeleteRevision makes a Revision unknown. Requests wait for another one of its name while the pool is retained, and are
// rejected otherwise.
func (s *Pools) DeleteRevision(key routing.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pools[key]; p != nil {
		p.setRevision(nil)
		s.dropLocked(p)
	}
}

// SetBackends sets the backends of a Revision.
func (s *Pools) SetBackends(key routing.Key, instances []workload.Instance) {
	s.setBackends(key, instances)()
}

func (s *Pools) setBackends(key routing.Key, instances []workload.Instance) (notify func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pools[key] == nil && len(instances) == 0 {
		return func() {}
	}
	p := s.pool(key)
	notify = p.setBackends(instances)
	s.dropLocked(p)
	return notify
}

// OwnersChanged moves requests that wait to the replicas that own their Revisions now. Requests in flight end here.
func (s *Pools) OwnersChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pools {
		p.ownerChanged()
	}
}

// Suspend rejects the requests that wait at Revisions with containerConcurrency of this replica, whose standing has lapsed.
func (s *Pools) Suspend() {
	for _, p := range s.list() {
		p.suspend()
	}
}

// LimitedInFlight reports whether a Revision with containerConcurrency has requests in flight.
func (s *Pools) LimitedInFlight() bool {
	return slices.ContainsFunc(s.list(), (*Pool).limitedInFlight)
}

func (s *Pools) list() []*Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.pools))
}

// Sample returns the usage of a Revision since the previous call: the average number of requests in flight, including waiting
// ones, and the requests that came per second; besides the number of requests that wait now. ok is false if the Revision
// is unknown.
func (s *Pools) Sample(key routing.Key, now time.Time) (concurrency, rps float64, waiting int, ok bool) {
	p, ok := s.Get(key)
	if !ok {
		return 0, 0, 0, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	concurrency, rps = p.usage.sample(now)
	return concurrency, rps, p.queue.length, true
}

// pool returns the pool of a Revision, and makes it if it does not exist. s.mu is held.
func (s *Pools) pool(key routing.Key) *Pool {
	p := s.pools[key]
	if p == nil {
		p = newPool(key, s)
		s.pools[key] = p
	}
	return p
}

func (s *Pools) drop(p *Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(p)
}

// dropLocked removes a pool without use. s.mu is held.
func (s *Pools) dropLocked(p *Pool) {
	if s.pools[p.key] != p || p.references > 0 || p.revision.Load() != nil || !p.close() {
		return
	}
	delete(s.pools, p.key)
	s.reports.remove(p)
	s.options.Fairness.Release(p.tenant)
}
