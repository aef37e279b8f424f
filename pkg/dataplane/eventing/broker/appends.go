package broker

import (
	"math"
	"sync"
	"sync/atomic"
)

// closed is added to the counter of appends that accepts no more.
const closed = math.MinInt64 / 2

// appends counts the appends in progress that may match the consumers of an index, so that a removed consumer gets no records
// after its queue was deleted.
type appends struct {
	count atomic.Int64
	once  sync.Once
	done  chan struct{} // closed via once when count is closed
}

func newAppends() *appends { return &appends{done: make(chan struct{})} }

// begin counts an append, unless a is closed.
func (a *appends) begin() bool {
	if a.count.Add(1) > 0 {
		return true
	}
	a.add(-1)
	return false
}

// end must be called after begin returned true.
func (a *appends) end() { a.add(-1) }

// close makes begin return false.
func (a *appends) close() { a.add(closed) }

func (a *appends) add(n int64) {
	if a.count.Add(n) == closed {
		a.once.Do(func() { close(a.done) })
	}
}

// beginAppend counts an append that reads the consumers after this call. The caller must call end on the result.
func (s *stream) beginAppend() *appends {
	for {
		if a := s.appends.Load(); a.begin() {
			return a
		}
	}
}

// settle waits for the appends in progress. Later ones match the current consumers.
func (s *stream) settle() {
	before := s.appends.Swap(newAppends())
	before.close()
	<-before.done
}
