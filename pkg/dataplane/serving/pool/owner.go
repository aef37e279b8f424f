package pool

import (
	"sync/atomic"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// Owners determines the replica that owns a Revision. One replica sends all requests to the backends of a Revision with
// containerConcurrency, so that their number is bounded regardless of the gateway that receives them (serving 8-7).
type Owners interface {
	// Owner returns the replica that owns a Revision; self is true if it is this one.
	Owner(key routing.Key) (owner membership.Member, self bool)
	// Shared reports whether other replicas may have requests in flight.
	Shared() bool
	// Inquire asks the other replicas for the requests that they have in flight at the backends of a Revision that this one
	// owns now, until learned returns false.
	Inquire(key routing.Key, learned func(ownership.Round) bool)
	// Standing returns the number of the term in which this replica may use the Revisions that it owns, and whether the term is valid.
	Standing() (term int, valid bool)
}

// owner is the owner of the requests of a pool and, if that is this replica, its claim on the backends: former owners may have
// requests in flight there. The lock of the pool guards claim.
type owner struct {
	owners Owners
	key    routing.Key
	// learned receives the rounds of an inquiry of a generation of claim, and reports whether to continue.
	learned func(generation int, round ownership.Round) bool
	// other is the replica that owns the Revision, or nil if this one does.
	other atomic.Pointer[membership.Member]
	// limited is true if the Revision has containerConcurrency, so that this replica needs a standing to use its backends. claim is
	// for one term of it.
	limited bool
	term    int
	claim   ownership.Claim
}

// locate determines the owner of a Revision, limited if it has containerConcurrency. It reports whether the owner is another replica.
func (o *owner) locate(limited bool) (other bool) {
	var next *membership.Member
	o.limited = limited
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
		o.gain()
	}
	return next != nil
}

// gain starts a claim in the current term.
func (o *owner) gain() {
	o.term, _ = o.owners.Standing()
	o.claim.Gain(o.owners.Shared())
}

// suspended reports whether this replica owns the Revision but may not use its backends, because others may consider the replica
// stopped. After a lapse of its standing, its claim starts again.
func (o *owner) suspended() bool {
	if !o.limited || o.other.Load() != nil {
		return false
	}
	term, valid := o.owners.Standing()
	if valid && term != o.term {
		o.gain()
	}
	return !valid
}

// usable reports whether this replica may use the backends, and asks the other replicas if that is unknown.
func (o *owner) usable() bool {
	if o.other.Load() != nil || o.suspended() {
		return false
	}
	if generation, start := o.claim.Ask(); start {
		go o.owners.Inquire(o.key, func(round ownership.Round) bool { return o.learned(generation, round) })
	}
	return o.claim.Usable()
}

// learn records a round of an inquiry, and reports whether it was accepted.
func (o *owner) learn(generation int, round ownership.Round) bool {
	return o.other.Load() == nil && o.claim.Learn(generation, round)
}
