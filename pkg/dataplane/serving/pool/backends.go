package pool

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// firstAvoid and lastAvoid are the first and the longest time for which a backend that accepted no connection is avoided.
// The time doubles with each failure.
const firstAvoid, lastAvoid = 20 * time.Millisecond, time.Second

// Backend is one Pod or process that serves a Revision. The lock of its pool guards it, except for name and upstream, which
// do not change.
type Backend struct {
	name     string
	upstream *http1.Upstream
	inFlight int
	// longLived counts the requests in flight that do not delay the end of the backend, see Request.Streaming.
	longLived int
	// draining is true if the backend gets no more requests, reported if Options.Drained was called for it.
	draining, reported bool
	// failures counts the connections that the backend has not accepted since the last request; it is avoided until avoid.
	failures int
	avoid    time.Time
}

// Name returns the name of the backend.
func (b *Backend) Name() string { return b.name }

// Upstream returns the fast path's connections to the backend, and its address.
func (b *Backend) Upstream() *http1.Upstream { return b.upstream }

// idle reports whether a backend has only long-lived requests.
func (b *Backend) idle() bool { return b.inFlight == b.longLived }

func (b *Backend) avoided(c clock.PassiveClock) bool {
	return !b.avoid.IsZero() && c.Now().Before(b.avoid)
}

// unreachable records that the backend accepted no connection. It returns the time for which the backend is avoided from now
// on, or 0 if it is avoided already.
func (b *Backend) unreachable(now time.Time) time.Duration {
	if now.Before(b.avoid) {
		return 0
	}
	b.failures++
	pause := backoff.Delay(b.failures, firstAvoid, lastAvoid)
	b.avoid = now.Add(pause)
	return pause
}

// hasDrained reports, once, that a draining backend is idle.
func (b *Backend) hasDrained() bool {
	if !b.draining || b.reported || !b.idle() {
		return false
	}
	b.reported = true
	return true
}

// backends is the set of backends of a pool: it chooses the backend of a request, and tracks which of them have drained.
type backends struct {
	clock clock.PassiveClock
	all   map[string]*Backend
	// gone are former backends that still have requests.
	gone map[string]*Backend
	// ready are the backends that do not drain; the search for one begins at next.
	ready []*Backend
	next  int
	// changed, if a drain waits for it, is closed when backends are added or removed, or have drained.
	changed chan struct{}
}

func newBackends(c clock.PassiveClock) backends {
	return backends{clock: c, all: map[string]*Backend{}, gone: map[string]*Backend{}}
}

// set replaces the backends, and returns the ones that have drained as a result. A nonzero seed determines the order of the
// ready ones: each replica counts only its own requests, and the replicas should not all send their first requests to the
// same backend.
func (s *backends) set(instances []workload.Instance, seed maphash.Seed) (drained []*Backend) {
	before := s.all
	s.all = make(map[string]*Backend, len(instances))
	s.ready = s.ready[:0:0]
	for _, in := range instances {
		b := before[in.Name]
		if b == nil || b.upstream.Address() != in.Address {
			b = s.returned(in)
		} else {
			delete(before, in.Name)
		}
		s.all[in.Name] = b
		if b.draining = in.Draining; !b.draining {
			s.ready = append(s.ready, b)
			b.reported = false
		}
		if b.hasDrained() {
			drained = append(drained, b)
		}
	}
	if seed != (maphash.Seed{}) {
		slices.SortStableFunc(s.ready, func(a, b *Backend) int {
			return cmp.Compare(maphash.String(seed, a.name), maphash.String(seed, b.name))
		})
	}
	for name, gone := range before {
		gone.upstream.Close()
		if gone.inFlight > 0 {
			s.gone[name] = gone
		}
	}
	if s.next >= len(s.ready) {
		s.next = 0
	}
	s.signal()
	return drained
}

// returned returns a new backend, or a former one with its remaining requests.
func (s *backends) returned(in workload.Instance) *Backend {
	b := s.gone[in.Name]
	if b == nil || b.upstream.Address() != in.Address {
		return &Backend{name: in.Name, upstream: http1.NewUpstream(in.Address)}
	}
	delete(s.gone, in.Name)
	b.upstream.Reopen()
	return b
}

// choose returns the backend with the fewest requests, round-robin among equals; nil if all have limit requests or are
// avoided. The claim counts the requests of other replicas.
func (s *backends) choose(limit int, claim *ownership.Claim) *Backend {
	var best *Backend
	fewest, at := limit, 0
	for i := range s.ready {
		j := s.next + i
		if j >= len(s.ready) {
			j -= len(s.ready)
		}
		b := s.ready[j]
		requests := b.inFlight + claim.Others(b.name)
		if requests >= fewest || b.avoided(s.clock) {
			continue
		}
		best, fewest, at = b, requests, j
		if fewest == 0 {
			break
		}
	}
	if best == nil {
		return nil
	}
	best.inFlight++
	if s.next = at + 1; s.next >= len(s.ready) {
		s.next = 0
	}
	return best
}

// usable returns the number of backends that accept requests.
func (s *backends) usable() int {
	n := 0
	for _, b := range s.ready {
		if !b.avoided(s.clock) {
			n++
		}
	}
	return n
}

// release ends a request at a backend. It reports whether the backend has drained as a result.
func (s *backends) release(b *Backend) (drained bool) {
	b.inFlight--
	drained = s.settle(b)
	if b.inFlight == 0 && s.gone[b.name] == b {
		delete(s.gone, b.name)
	}
	return drained
}

// settle checks a backend that may be idle now. It reports whether the backend has drained as a result.
func (s *backends) settle(b *Backend) (drained bool) {
	if !b.idle() {
		return false
	}
	drained = s.all[b.name] == b && b.hasDrained()
	if drained || s.gone[b.name] == b {
		s.signal()
	}
	return drained
}

// signal wakes drains that wait for a change.
func (s *backends) signal() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// empty reports whether the set has no backends and no requests at former ones.
func (s *backends) empty() bool { return len(s.all) == 0 && len(s.gone) == 0 }

// requests returns the requests in flight by backend.
func (s *backends) requests() map[string]int {
	requests := map[string]int{}
	for _, set := range []map[string]*Backend{s.all, s.gone} {
		for name, b := range set {
			if b.inFlight > 0 {
				requests[name] += b.inFlight
			}
		}
	}
	return requests
}

// drained reports whether a backend gets no more requests and has only long-lived ones, and whether it is known. changed is
// closed when the result may have changed.
func (s *backends) drained(name string) (drained, known bool, changed <-chan struct{}) {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	b, gone := s.all[name], s.gone[name]
	drained = (gone == nil || gone.idle()) && (b == nil || b.draining && b.idle())
	return drained, b != nil || gone != nil, s.changed
}
