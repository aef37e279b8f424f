package broker

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// memoryShare is the part of the free budget that the deliveries of a namespace may hold: less than requests may, which
	// find memory while deliveries wait for failing subscribers.
	memoryShare = 4
	// segmentWeight is how often a segment is in memory while its events are delivered and written again.
	segmentWeight = 2
	// memoryPoll is the time after which somebody who waits for memory looks again, as requests free it too.
	memoryPoll = 100 * time.Millisecond
)

// memories has the *memory of each namespace that has, or had, streams.
type memories struct {
	budget *flow.Budget
	clock  clock.WithDelayedExecution
	by     sync.Map
}

func (m *memories) of(namespace string) *memory {
	if found, ok := m.by.Load(namespace); ok {
		return found.(*memory)
	}
	found, _ := m.by.LoadOrStore(namespace, &memory{
		budget: m.budget, clock: m.clock, namespace: namespace, turn: make(chan struct{}, 1), freed: make(chan struct{}, 1),
	})
	return found.(*memory)
}

// memory bounds the segments of retries that a namespace has in memory. It implements eventlog.Memory.
type memory struct {
	budget    *flow.Budget
	clock     clock.WithDelayedExecution
	namespace string
	// turn is held by the one that gets memory next, freed gets a value when there may be more.
	turn, freed chan struct{}

	// mu guards held: the bytes of all.
	mu   sync.Mutex
	held int64
}

// Acquire implements eventlog.Memory. Consumers get memory in the order in which they asked for it, and one of them
// always gets some.
func (m *memory) Acquire(ctx context.Context, bytes int) bool {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return false
	}
	for !m.try(bytes) {
		timer := m.clock.NewTimer(memoryPoll)
		select {
		case <-m.freed:
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return false
		}
	}
	return true
}

func (m *memory) try(bytes int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held > 0 && m.held+segmentWeight*int64(bytes) > m.share() {
		return false
	}
	m.add(bytes)
	return true
}

// share returns how many bytes the namespace may hold. mu is held.
func (m *memory) share() int64 { return m.budget.Free() / memoryShare }

// Add implements eventlog.Memory.
func (m *memory) Add(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(bytes)
}

func (m *memory) add(bytes int) {
	m.held += segmentWeight * int64(bytes)
	m.budget.Add(m.namespace, segmentWeight*int64(bytes))
}

// Release implements eventlog.Memory.
func (m *memory) Release(bytes int) {
	m.Add(-bytes)
	select {
	case m.freed <- struct{}{}:
	default:
	}
}

// scarce reports whether half of the share is held. The rest is for deliveries that are due.
func (m *memory) scarce() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held > m.share()/2
}
