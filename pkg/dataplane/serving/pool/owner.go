package pool

import (
	"math"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// Owners knows which replica owns a Revision. One of the replicas sends all requests to the backends of a Revision with
// containerConcurrency, so that their number is bounded whichever gateway they come to (serving 8-7).
type Owners interface {
	// Owner returns the replica that owns a Revision; self is true if it is this one.
	Owner(key routing.Key) (owner membership.Member, self bool)
	// Shared reports whether other replicas may have requests in flight.
	Shared() bool
	// Inquire asks the other replicas for the requests that they have in flight at the backends of a Revision that this one
	// owns now, until learned returns false.
	Inquire(key routing.Key, learned func(ownership.Round) bool)
}

// locate determines which replica the pool's requests are for. p.mu is held.
func (p *Pool) locate() {
	owners := p.pools.options.Owners
	var owner *membership.Member
	limited := p.limit < math.MaxInt
	if limited {
		if o, self := owners.Owner(p.key); !self {
			owner = &o
		}
	}
	before := p.owner.Swap(owner)
	switch {
	case owner != nil:
		p.claim.Release()
		p.flush(Grant{Outcome: Moved})
		p.metrics.start = coldStart{}
	case !limited:
		p.claim.Release()
	case before != nil || !p.claim.Gained():
		p.claim.Gain(owners.Shared())
	}
}

// claimed reports whether the backends may be used, and asks the other replicas if that is not known. p.mu is held.
func (p *Pool) claimed() bool {
	if p.owner.Load() != nil {
		return false
	}
	if generation, start := p.claim.Ask(); start {
		go p.pools.options.Owners.Inquire(p.key, func(round ownership.Round) bool { return p.learn(generation, round) })
	}
	return p.claim.Usable()
}

// learn records a round of an inquiry, and reports whether to go on.
func (p *Pool) learn(generation int, round ownership.Round) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owner.Load() != nil || !p.claim.Learn(generation, round) {
		return false
	}
	p.dispatch()
	return p.claim.Continue(p.queue.length > 0)
}
