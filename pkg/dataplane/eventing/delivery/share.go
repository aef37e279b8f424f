package broker

import "sync"

// maxAttempts bounds the attempts of one namespace that are under way at a time, over all its consumers: a flood of
// events, or subscribers that take long, cost others nothing beyond that. It is more than one consumer may have.
const maxAttempts = 4 * maxLimit

// shares has the *share of each namespace that has, or had, streams.
type shares struct {
	max int
	by  sync.Map
}

func (s *shares) of(namespace string) *share {
	if found, ok := s.by.Load(namespace); ok {
		return found.(*share)
	}
	found, _ := s.by.LoadOrStore(namespace, &share{free: s.max})
	return found.(*share)
}

// share is what the lanes of a namespace may have under way. Those that want more than there is take turns.
type share struct {
	mu sync.Mutex
	// All below is guarded by mu. Lanes in waiting have their waits set.
	free    int
	waiting []*lane
}

// acquire tells whether a lane may begin an attempt, which ends with release. Else the lane is asked later on to begin
// one.
func (s *share) acquire(l *lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free > 0 && len(s.waiting) == 0 {
		s.free--
		return true
	}
	if !l.waits {
		l.waits = true
		s.waiting = append(s.waiting, l)
	}
	return false
}

// release ends an attempt, and has the lane begin one whose turn is next. No lane's mu may be held.
func (s *share) release() {
	for {
		l := s.pop()
		if l == nil || l.begin() {
			return
		}
	}
}

// pop returns the lane whose turn is next, or nil if there is none.
func (s *share) pop() *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		s.free++
		return nil
	}
	l := s.waiting[0]
	s.waiting[0] = nil
	s.waiting = s.waiting[1:]
	l.waits = false
	return l
}

// begin begins an attempt that share has room for. False tells that there is none to be made.
func (l *lane) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.next(func() bool { return true })
	if d == nil {
		return false
	}
	l.start(d)
	l.kick()
	return true
}
