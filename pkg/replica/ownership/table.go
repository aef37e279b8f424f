// Package ownership assigns each key to one replica: it computes the owner from the membership, paces the attempts to
// reach it, and hands keys over when the membership changes.
//
// While replicas disagree about the membership, two of them may own the same key. A former owner that has state notifies
// the new one of each release (Handover), or the new owner queries the former ones for their remaining use (Claim).
package ownership

import (
	"sync/atomic"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// Place determines the owner of a key.
type Place struct {
	// Name is the string from which the weights of the members are computed. It must be the same in all replicas and distinct for each
	// kind of key.
	Name string
	// Rank is 0 for the member with the highest weight, 1 for the next one, and so on, in a circle: keys of one name with successive
	// ranks have different owners, as far as there are as many members.
	Rank int
}

// Table computes the owners of keys from the current membership. It may be used concurrently.
type Table[K any] struct {
	members *membership.View
	place   func(K) Place
	// changed is closed and replaced when the membership changes.
	changed atomic.Pointer[chan struct{}]
}

// NewTable returns the owners of keys among some replicas.
func NewTable[K any](members *membership.View, place func(K) Place) *Table[K] {
	t := &Table[K]{members: members, place: place}
	changed := make(chan struct{})
	t.changed.Store(&changed)
	members.Subscribe(func(*membership.Set) {
		next := make(chan struct{})
		close(*t.changed.Swap(&next))
	})
	return t
}

// Current returns the owners of the current membership.
func (t *Table[K]) Current() Owners[K] { return Among(t.members.Current(), t.place) }

// Owns reports whether this replica currently owns key.
func (t *Table[K]) Owns(key K) bool { return t.Current().Owns(key) }

// Changed returns a channel that is closed when the membership changes. A caller that waits for another owner calls it
// before Current.
func (t *Table[K]) Changed() <-chan struct{} { return *t.changed.Load() }

// Owners are the owners of all keys for one membership. Immutable and comparable by Equal.
type Owners[K any] struct {
	set   *membership.Set
	place func(K) Place
}

// Among returns the owners of keys for one membership.
func Among[K any](set *membership.Set, place func(K) Place) Owners[K] {
	return Owners[K]{set, place}
}

// Owner returns the owner of key, and whether it is this replica.
func (o Owners[K]) Owner(key K) (owner membership.Member, self bool) {
	owner = rendezvous(o.set, o.place(key))
	return owner, owner.Name == o.set.Self()
}

// Owns reports whether this replica owns key.
func (o Owners[K]) Owns(key K) bool {
	_, self := o.Owner(key)
	return self
}

// Gained returns a function that reports whether this replica owns a key that it did not own in an earlier membership.
func (o Owners[K]) Gained(before Owners[K]) func(K) bool {
	return func(key K) bool { return o.Owns(key) && !before.Owns(key) }
}

// Equal reports whether both have the same membership.
func (o Owners[K]) Equal(other Owners[K]) bool { return o.set == other.set }
