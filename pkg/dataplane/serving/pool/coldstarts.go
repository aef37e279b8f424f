package pool

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// maxColdStarts bounds the changes of cold starts between two calls of Pools.ColdStarts. The oldest ones are dropped.
const maxColdStarts = 256

// ColdStart is the progress of a cold start that a request began. Times that have not come are zero.
type ColdStart struct {
	Key routing.Key
	UID types.UID
	// Request is the method, host and path of the request, see Waiter.Describe.
	Request string
	// Received is when the request was received, Granted when the first request got a backend, whose name is Backend, Responded when
	// the response to the request started, Canceled when the last request stopped waiting without a backend.
	Received, Granted, Responded, Canceled time.Time
	Backend                                string
}

// coldStarts has the changes of cold starts since the previous call of drain. Its methods may be called concurrently.
type coldStarts struct {
	mu      sync.Mutex
	changed []ColdStart
}

// add adds a cold start that has begun or changed.
func (s *coldStarts) add(c *ColdStart) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.changed) == maxColdStarts {
		s.changed = slices.Delete(s.changed, 0, 1)
	}
	s.changed = append(s.changed, *c)
}

// drain returns the changes, oldest first.
func (s *coldStarts) drain() []ColdStart {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = nil
	return changed
}

// ColdStarts returns the cold starts that have begun or changed since the previous call, oldest change first. A cold start may occur
// several times.
func (s *Pools) ColdStarts() []ColdStart { return s.coldStarts.drain() }

// recordColdStart records a cold start that a request has begun. p.mu is held.
func (p *Pool) recordColdStart(w Waiter) {
	revision := p.revision.Load()
	if revision == nil {
		return
	}
	p.recorded = &ColdStart{Key: p.key, UID: revision.UID}
	p.recorded.Request, p.recorded.Received = w.Describe()
	p.pools.coldStarts.add(p.recorded)
}

// grantRecorded records that the first request of a cold start got a backend. p.mu is held.
func (p *Pool) grantRecorded(b *Backend) {
	if c := p.recorded; c != nil && c.Granted.IsZero() {
		c.Granted, c.Backend = p.pools.options.Clock.Now(), b.name
		p.pools.coldStarts.add(c)
	}
}

// endRecorded records that the response to the request that began a cold start has started. p.mu is held.
func (p *Pool) endRecorded() {
	if c := p.recorded; c != nil && !c.Granted.IsZero() {
		c.Responded = p.pools.options.Clock.Now()
		p.pools.coldStarts.add(c)
		p.recorded = nil
	}
}

// cancelRecorded records that no request waits for the end of a cold start any more. p.mu is held.
func (p *Pool) cancelRecorded() {
	if c := p.recorded; c != nil && c.Granted.IsZero() {
		c.Canceled = p.pools.options.Clock.Now()
		p.pools.coldStarts.add(c)
		p.recorded = nil
	}
}
