// Package membership follows the replicas of this server.
package membership

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Member is a replica of this server.
type Member struct {
	// Name is the name of its Pod.
	Name string
	// Address is the host:port for requests of other replicas.
	Address string
}

// Set has the members at one time. Immutable.
type Set struct {
	self    string
	members []Member // by name
}

// NewSet returns the set of members that the replica named self observes. self need not be a member.
func NewSet(self string, members ...Member) *Set {
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return &Set{self: self, members: members}
}

// Members returns all members by name. The slice must not be changed.
func (s *Set) Members() []Member { return s.members }

// Self returns the name of the replica that observes the set.
func (s *Set) Self() string { return s.self }

// View has the current members. It may be used concurrently.
type View struct {
	current atomic.Pointer[Set]

	// mu orders changes, and guards subscribers.
	mu          sync.Mutex
	subscribers []func(*Set)
}

// NewView returns a View of the given members until Set is called.
func NewView(set *Set) *View {
	v := &View{}
	v.current.Store(set)
	return v
}

// Alone returns the view of a server without other replicas.
func Alone() *View { return NewView(NewSet("", Member{})) }

// Current returns the current members.
func (v *View) Current() *Set { return v.current.Load() }

// Subscribe registers fn to be called with each later set, one call at a time. It must not block.
func (v *View) Subscribe(fn func(*Set)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.subscribers = append(v.subscribers, fn)
}

// Set changes the members and calls the subscribers. A set of the same members is not a change.
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
