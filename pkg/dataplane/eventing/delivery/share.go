package delivery

import "sync"

// maxInFlight bounds the attempts in flight of one namespace, over all of its consumers: a flood of events or slow
// subscribers cost other namespaces no more than that. It is larger than the window of one consumer.
const maxInFlight = 4 * maxWindow

// Shares has the Share of each namespace.
type Shares struct {
	max int
	by  sync.Map
}

// NewShares returns Shares with a number of attempts in flight per namespace; 0 stands for the default.
func NewShares(max int) *Shares {
	if max == 0 {
		max = maxInFlight
	}
	return &Shares{max: max}
}

// Of returns the Share of a namespace.
func (s *Shares) Of(namespace string) *Share {
	if found, ok := s.by.Load(namespace); ok {
		return found.(*Share)
	}
	found, _ := s.by.LoadOrStore(namespace, &Share{free: s.max})
	return found.(*Share)
}

// Share bounds the attempts in flight of a namespace. Queues that want more take turns.
type Share struct {
	mu sync.Mutex
	// free is the number of attempts that may start, waiting are the Queues to call, each with queued set. mu guards both.
	free    int
	waiting []*Queue
}

// acquire reports whether a Queue may start an attempt, to be ended by release. Otherwise the Share calls the Queue's startOne
// later.
func (s *Share) acquire(q *Queue) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free > 0 && len(s.waiting) == 0 {
		s.free--
		return true
	}
	if !q.queued {
		q.queued = true
		s.waiting = append(s.waiting, q)
	}
	return false
}

// release ends an attempt, and passes its place to the next Queue that uses it. No mu of a Queue may be held.
func (s *Share) release() {
	for {
		q := s.pop()
		if q == nil || q.startOne() {
			return
		}
	}
}

// pop returns the Queue whose turn is next. Without any, it frees the place and returns nil.
func (s *Share) pop() *Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return nil
	}
	q := s.waiting[0]
	s.waiting[0] = nil
	s.waiting = s.waiting[1:]
	q.queued = false
	return q
}

// Status returns the number of attempts that may start, and of waiting Queues.
func (s *Share) Status() (free, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free, len(s.waiting)
}
