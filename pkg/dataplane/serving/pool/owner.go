package pool

import (
	"sync/atomic"

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

// owner is the replica that the requests of a pool are for, and if it is this one, what it may use of the backends: former
// owners may have requests in flight there. The lock of the pool guards claim.
type owner struct {
	owners Owners
	key    routing.Key
	// learned receives the rounds of an inquiry of a generation of claim, and reports whether to go on.
	learned func(generation int, round ownership.Round) bool
	// other is the other replica that the requests are for, or nil if they are for this one.
	other atomic.Pointer[membership.Member]
	claim ownership.Claim
}

// locate determines the owner of a Revision, limited if it has containerConcurrency. It reports whether that is another
// replica.
func (o *owner) locate(limited bool) (other bool) {
	var next *membership.Member
	if limited {
		if m, self := o.owners.Owner(o.key); !self {
			next = &m
		}
	}
	before := o.other.Swap(next)
	switch {
	case next != nil || !limited:
		o.claim.Release()
	case before != nil || !o.claim.Gained():
		o.claim.Gain(o.owners.Shared())
	}
	return next != nil
}

// usable reports whether this replica may use the backends, and asks the other replicas if that is not known.
func (o *owner) usable() bool {
	if o.other.Load() != nil {
		return false
	}
	if generation, start := o.claim.Ask(); start {
		go o.owners.Inquire(o.key, func(round ownership.Round) bool { return o.learned(generation, round) })
	}
	return o.claim.Usable()
}

// learn records a round of an inquiry, and reports whether it is of use.
func (o *owner) learn(generation int, round ownership.Round) bool {
	return o.other.Load() == nil && o.claim.Learn(generation, round)
}
