package consume

import (
	"sync"
	"time"
)

const (
	// An acknowledged segment is remembered for ackedFor to twice that; less if ackedSegments are acknowledged meanwhile.
	ackedFor      = 30 * time.Second
	ackedSegments = 1 << 16
)

// acked remembers which messages of a stream were acknowledged recently. If the server gets an acknowledgement too late,
// because it or this process was slow, it redelivers the message, which is acknowledged again then and not delivered. The
// zero value is empty.
type acked struct {
	mu sync.Mutex
	// young and old map sequences to the time at which the server stored the message, in nanoseconds: a stream in memory
	// reuses sequences after a restart.
	young, old map[uint64]int64
	rotated    time.Time // when young became old
}

func (a *acked) add(sequence uint64, stored time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.young == nil {
		a.young = map[uint64]int64{}
	}
	a.young[sequence] = stored.UnixNano()
	if len(a.young) >= ackedSegments {
		a.rotate(time.Now())
	}
}

func (a *acked) has(sequence uint64, stored time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, messages := range [...]map[uint64]int64{a.young, a.old} {
		if at, found := messages[sequence]; found && at == stored.UnixNano() {
			return true
		}
	}
	return false
}

// age forgets messages that were acknowledged long before now.
func (a *acked) age(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.rotated) >= ackedFor {
		a.rotate(now)
	}
}

// rotate makes young old, and forgets old. mu is held.
func (a *acked) rotate(now time.Time) { a.old, a.young, a.rotated = a.young, nil, now }
