package delivery

import "sync"

// maxInFlight bounds the attempts in flight of one namespace, over all of its consumers, and so the effect of a flood of events or
// of slow subscribers on other namespaces. It is larger than the window of one consumer.
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
	// free is the number of attempts that may start, waiting are the dispatchers to call, each with queued set. mu guards both.
	free    int
	waiting []*dispatcher
}

// acquire reports whether a dispatcher may start an attempt, to be ended by release. Otherwise the Share calls its startOne later.
func (s *Share) acquire(p *dispatcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free > 0 && len(s.waiting) == 0 {
		s.free--
		return true
	}
	if !p.queued {
		p.queued = true
		s.waiting = append(s.waiting, p)
	}
	return false
}

// release ends an attempt, and passes its place to the next dispatcher that uses it. No mu of a Queue may be held.
func (s *Share) release() {
	for {
		p := s.pop()
		if p == nil || p.startOne() {
			return
		}
	}
}

// pop returns the dispatcher whose turn is next. Without any, it frees the place and returns nil.
func (s *Share) pop() *dispatcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return nil
	}
	p := s.waiting[0]
	s.waiting[0] = nil
	s.waiting = s.waiting[1:]
	p.queued = false
	return p
}

// Status returns the number of attempts that may start, and of waiting Queues.
func (s *Share) Status() (free, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free, len(s.waiting)
}
