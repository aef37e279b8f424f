package eventlog

import (
	"sync"
	"time"
)

const (
	// ackedFor is how long it is remembered at least that a frame is done, and twice that at most; less if ackedFrames
	// are done in the meantime.
	ackedFor    = 30 * time.Second
	ackedFrames = 1 << 16
)

// acked remembers which messages of a stream were done lately. A server that hears of that too late, as it or this
// process was slow, hands them over again; it is told again then, and nobody else. The zero value is empty.
type acked struct {
	mu sync.Mutex
	// young and old hold when the server stored the messages, in nanoseconds, by sequence: a stream in memory has the
	// sequences again after a restart.
	young, old map[uint64]int64
	turned     time.Time // when young became old
}

func (a *acked) add(sequence uint64, stored time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.young == nil {
		a.young = map[uint64]int64{}
	}
	a.young[sequence] = stored.UnixNano()
	if len(a.young) >= ackedFrames {
		a.turn(time.Now())
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

// age forgets what was done long before now.
func (a *acked) age(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.turned) >= ackedFor {
		a.turn(now)
	}
}

// turn makes what is young old, and forgets what was. It holds a.mu.
func (a *acked) turn(now time.Time) { a.old, a.young, a.turned = a.young, nil, now }
