package logqueue

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// memoryShare is the divisor of the free budget that yields the limit for the deliveries of a namespace. Requests may use
	// more, so that they find memory while deliveries wait for failing subscribers.
	memoryShare = 4
	// segmentWeight is the number of times that a segment is in memory while its events are delivered and written again.
	segmentWeight = 2
	// memoryPoll is the interval at which a waiting consumer checks the budget, because requests free memory too.
	memoryPoll = 100 * time.Millisecond
)

// Memories has the Memory of each namespace.
type Memories struct {
	budget *flow.Budget
	clock  clock.WithDelayedExecution
	by     sync.Map
}

// NewMemories returns Memories within a budget.
func NewMemories(budget *flow.Budget, c clock.WithDelayedExecution) *Memories {
	return &Memories{budget: budget, clock: c}
}

// Of returns the Memory of a namespace.
func (m *Memories) Of(namespace string) *Memory {
	if found, ok := m.by.Load(namespace); ok {
		return found.(*Memory)
	}
	found, _ := m.by.LoadOrStore(namespace, &Memory{
		budget: m.budget, clock: m.clock, namespace: namespace, turn: make(chan struct{}, 1), freed: make(chan struct{}, 1),
	})
	return found.(*Memory)
}

// Memory bounds the segments of retries that a namespace holds in memory. It implements eventlog.Memory.
type Memory struct {
	budget    *flow.Budget
	clock     clock.WithDelayedExecution
	namespace string
	// turn is held by the consumer that gets memory next. freed receives a value when memory was released.
	turn, freed chan struct{}

	mu sync.Mutex
	// used is the number of bytes held. mu guards it.
	used int64
}

// Acquire implements eventlog.Memory. Consumers get memory in the order of their requests, and at least one segment is
// always admitted, unless the caches of the namespace, which retries fill again, hold more than its share.
func (m *Memory) Acquire(ctx context.Context, bytes int) bool {
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

func (m *Memory) try(bytes int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used > 0 && m.used+segmentWeight*int64(bytes) > m.limit() || m.budget.CacheFull(m.namespace) {
		return false
	}
	m.add(bytes)
	return true
}

// limit returns the number of bytes that the namespace may hold.
func (m *Memory) limit() int64 { return m.budget.Free() / memoryShare }

// Add implements eventlog.Memory.
func (m *Memory) Add(bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.add(bytes)
}

func (m *Memory) add(bytes int) {
	m.used += segmentWeight * int64(bytes)
	m.budget.Add(m.namespace, segmentWeight*int64(bytes))
}

// Release implements eventlog.Memory.
func (m *Memory) Release(bytes int) {
	m.Add(-bytes)
	select {
	case m.freed <- struct{}{}:
	default:
	}
}

// Scarce reports whether half of the limit is used. The other half is reserved for deliveries that are due.
func (m *Memory) Scarce() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used > m.limit()/2
}
