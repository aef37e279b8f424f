package ownership

import (
	"slices"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// Holders are the replicas that may use keys of this one: the other members, and former members until they have certainly stopped.
type Holders struct {
	// mu guards the fields below.
	mu     sync.Mutex
	set    *membership.Set
	former map[string]former
}

// former is a former member. It may have considered itself a member until since.
type former struct {
	membership.Member
	since time.Time
}

// NewHolders returns the holders for a first membership.
func NewHolders(set *membership.Set) *Holders {
	return &Holders{set: set, former: map[string]former{}}
}

// Set updates the membership.
func (h *Holders) Set(set *membership.Set) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for _, m := range h.set.Members() {
		h.former[m.Name] = former{m, now}
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
		all = append(all, m.Member)
	}
	return all
}

// Member reports whether a replica is a member.
func (h *Holders) Member(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.member(name)
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

// member is Member with mu held.
func (h *Holders) member(name string) bool {
	return slices.ContainsFunc(h.set.Members(), func(m membership.Member) bool { return m.Name == name })
}

// Confirm reports whether another replica may continue: as a member or, if it drains, with its remaining requests.
func (h *Holders) Confirm(name string, draining bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.member(name) {
		return true
	}
	m, known := h.former[name]
	if known && draining {
		m.since = time.Now()
		h.former[name] = m
	}
	return known && draining
}

// Forget removes a former member that has announced that it has stopped, and reports false for a member.
func (h *Holders) Forget(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.member(name) {
		return false
	}
	delete(h.former, name)
	return true
}

// since returns the time since which a replica is not a member, and the zero time for a member. known is false for a replica that was never a member.
func (h *Holders) since(name string) (since time.Time, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m, known := h.former[name]
	return m.since, known || h.member(name)
}

// forgetSince removes a former member unless it was confirmed or a member after since.
func (h *Holders) forgetSince(name string, since time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m, known := h.former[name]; known && m.since.Equal(since) {
		delete(h.former, name)
		return true
	}
	return false
}
