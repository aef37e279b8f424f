// Package flow has the limits that both data planes share.
package flow

import (
	"net/netip"
	"sync"

	"github.com/knative-apiserver/knative-apiserver/pkg/memorylimit"
)

const (
	// The default limit of a Budget is the memory limit of the process divided by defaultShare, at most maxDefault.
	defaultShare = 4
	maxDefault   = 512 << 20

	// A namespace that holds at most a smallPart of the limit may exceed it, together with others, by a reservePart: memory that others added
	// beyond the limit must not stop a namespace with a few requests.
	smallPart, reservePart = 1024, 8

	// clientPart is the part of the limit that clients may hold together before their namespace is known, beyond the share of all: see Arrival.
	clientPart = 16
)

// DefaultLimit returns the default limit of the Budget of this process: a quarter of its memory limit, at most 512 MiB.
func DefaultLimit() int64 { return min(memorylimit.Process()/defaultShare, maxDefault) }

// Budget bounds the bytes of memory that requests, events and deliveries hold, in the process and for each namespace.
//
// A namespace may hold as many bytes as are free (dynamic thresholds, as in the shared buffers of switches): half of
// the limit while it is alone, a third each when two compete, and a namespace that starts always finds some.
// A Budget is safe for concurrent use.
type Budget struct {
	limit, guaranteed int64

	// mu guards the fields below: the bytes held in all, and by each namespace that holds some; allCached and cached are the parts of these
	// in caches, ofClients and clients the parts that clients hold beyond the share of all.
	mu                         sync.Mutex
	used, allCached, ofClients int64
	namespaces, cached         map[string]int64
	clients                    map[netip.Addr]int64
}

// NewBudget returns a Budget of limit bytes. A namespace may hold up to guaranteed bytes regardless of its share, as long as
// the limit is not exceeded: enough for the largest single request.
func NewBudget(limit, guaranteed int64) *Budget {
	return &Budget{
		limit: max(limit, guaranteed), guaranteed: guaranteed,
		namespaces: map[string]int64{}, cached: map[string]int64{}, clients: map[netip.Addr]int64{},
	}
}

// Reserve adds bytes to the bytes that a namespace holds. It returns false without adding any if the limit or the share of the
// namespace would be exceeded; a namespace that holds little may exceed the limit by an eighth.
func (b *Budget) Reserve(namespace string, bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reserveLocked(namespace, bytes)
}

func (b *Budget) reserveLocked(namespace string, bytes int64) bool {
	held, free := b.namespaces[namespace]+bytes, b.freeLocked(namespace, bytes)
	small := held <= b.small() && free >= -b.limit/reservePart
	if !small && (free < 0 || held > max(free, b.guaranteed)) {
		return false
	}
	b.addLocked(namespace, bytes)
	return true
}

// freeLocked returns the bytes that are free for a namespace once it holds more bytes.
func (b *Budget) freeLocked(namespace string, bytes int64) int64 {
	free := b.limit - b.used - bytes
	if b.cached[namespace] <= b.guaranteed {
		// Caches grow beyond the limit for a while, of which this namespace is not the cause: they leave it half of the limit.
		free += max(b.allCached-b.limit/2, 0)
	}
	return free
}

// Add adds bytes that are already in use, even beyond the limit.
func (b *Budget) Add(namespace string, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(namespace, bytes)
}

// Release subtracts bytes that were reserved or added.
func (b *Budget) Release(namespace string, bytes int64) {
	b.Add(namespace, -bytes)
}

// Cache adds bytes that a cache holds for a namespace, or subtracts them if they are negative. They are freed some time after their last
// use, and not earlier.
func (b *Budget) Cache(namespace string, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(namespace, bytes)
	b.allCached += bytes
	add(b.cached, namespace, bytes)
}

// CacheFull reports whether caches alone hold more for a namespace than its share: what fills them must wait until they free some.
func (b *Budget) CacheFull(namespace string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cached[namespace] > max(b.limit-b.used, b.small())
}

// small is the number of bytes that a namespace may hold although others exceed the limit.
func (b *Budget) small() int64 { return b.limit / smallPart }

// Limit returns the maximum number of bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Held returns the bytes that a namespace holds.
func (b *Budget) Held(namespace string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.namespaces[namespace]
}

// Used returns the bytes that all namespaces hold.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Free returns the bytes that are not held.
func (b *Budget) Free() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit - b.used
}

// addLocked adds bytes, which may be negative.
func (b *Budget) addLocked(namespace string, bytes int64) {
	b.used += bytes
	add(b.namespaces, namespace, bytes)
}

// add adds bytes to the bytes of a namespace or client.
func add[K comparable](holders map[K]int64, holder K, bytes int64) {
	if held := holders[holder] + bytes; held != 0 {
		holders[holder] = held
	} else {
		delete(holders, holder)
	}
}
