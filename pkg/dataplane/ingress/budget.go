package ingress

import "sync"

// budget counts the bytes of bodies. One namespace gets no more than a share of them, so that others find some.
type budget struct {
	max, share int64

	// mu guards what follows: the bytes in use, and those of each namespace.
	mu   sync.Mutex
	used int64
	by   map[string]int64
}

// newBudget returns the budget of a number of bytes, of which a namespace may have half, but always as many as least.
func newBudget(bytes, least int64) *budget {
	bytes = max(bytes, least)
	return &budget{max: bytes, share: max(bytes/2, least), by: map[string]int64{}}
}

// acquire counts bytes, if there are as many.
func (m *budget) acquire(namespace string, bytes int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used+bytes > m.max || m.by[namespace]+bytes > m.share {
		return false
	}
	m.used += bytes
	m.by[namespace] += bytes
	return true
}

// release gives bytes back.
func (m *budget) release(namespace string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= bytes
	if m.by[namespace] -= bytes; m.by[namespace] == 0 {
		delete(m.by, namespace)
	}
}
