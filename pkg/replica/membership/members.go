// Package membership tells which replicas of this server there are, and which of them something belongs to.
package membership

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Member is a replica of this server.
type Member struct {
	// Name is that of its Pod.
	Name string
	// Address is the host:port at which the other replicas reach it.
	Address string
}

// Set is the replicas that there were at a time. Immutable.
type Set struct {
	self    string
	members []Member // by name
}

// NewSet returns the set of some members, as the one named self sees them. self need not be among them.
func NewSet(self string, members ...Member) *Set {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return &Set{self: self, members: members}
}

// Members returns all members, by name. The slice may not be changed.
func (s *Set) Members() []Member { return s.members }

// Self returns the name of the member that the set is seen by.
func (s *Set) Self() string { return s.self }

// View follows the members that there are. It may be used concurrently.
type View struct {
	current atomic.Pointer[Set]

	// mu orders changes, and guards subscribers.
	mu          sync.Mutex
	subscribers []func(*Set)
}

// NewView returns a View that sees the given members until Set is called.
func NewView(set *Set) *View {
	v := &View{}
	v.current.Store(set)
	return v
}

// Alone returns the view of a server that has no other replicas.
func Alone() *View { return NewView(NewSet("", Member{})) }

// Current returns the members that there are now.
func (v *View) Current() *Set { return v.current.Load() }

// Subscribe has fn called with each later set, one call at a time. It must not block.
func (v *View) Subscribe(fn func(*Set)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.subscribers = append(v.subscribers, fn)
}

// Set has all see other members. A set of the same members is no change.
func (v *View) Set(set *Set) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if slices.Equal(v.Current().members, set.members) && v.Current().self == set.self {
		return
	}
	v.current.Store(set)
	for _, fn := range v.subscribers {
		fn(set)
	}
}
