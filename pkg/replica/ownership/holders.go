package ownership

import (
	"slices"
	"sync"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// Holders are the replicas that may use what belongs to this one: the other members, and former members until they stop
// answering.
type Holders struct {
	// mu guards the fields below.
	mu     sync.Mutex
	set    *membership.Set
	former map[string]membership.Member
}

// NewHolders returns the holders for a first membership.
func NewHolders(set *membership.Set) *Holders {
	return &Holders{set: set, former: map[string]membership.Member{}}
}

// Set updates the membership.
func (h *Holders) Set(set *membership.Set) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range h.set.Members() {
		h.former[m.Name] = m
	}
	for _, m := range set.Members() {
		delete(h.former, m.Name)
	}
	delete(h.former, set.Self())
	h.set = set
}

// Members returns the other members.
func (h *Holders) Members() []membership.Member {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.members()
}

// All returns the other members and the former ones.
func (h *Holders) All() []membership.Member {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.members()
	for _, m := range h.former {
		all = append(all, m)
	}
	return all
}

// members is Members with mu held.
func (h *Holders) members() []membership.Member {
	var others []membership.Member
	for _, m := range h.set.Members() {
		if m.Name != h.set.Self() {
			others = append(others, m)
		}
	}
	return others
}

// Forget removes a former member that does not answer, and reports false for a member.
func (h *Holders) Forget(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.ContainsFunc(h.set.Members(), func(m membership.Member) bool { return m.Name == name }) {
		return false
	}
	delete(h.former, name)
	return true
}
