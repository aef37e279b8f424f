package ownership

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Validity is the time that a replica may use the keys that it owns after it began to confirm its membership. It is shorter than a
	// Lease, so that a replica without a connection has stopped before others can see its Lease expire.
	Validity = 5 * time.Second
	// confirmAfter is the age of a confirmation after which Run requests another one, and confirmInterval the pause after a failure.
	// Renewals of the Lease confirm too, and are more frequent while the host answers.
	confirmAfter, confirmInterval = 3 * time.Second, 500 * time.Millisecond
	// confirmTimeout bounds one attempt.
	confirmTimeout = time.Second
)

// Standing tracks whether a replica may still use the keys that it owns exclusively. Each renewal of its Lease confirms it, and so do
// the other replicas together. It lapses Validity after the start of the last confirmation. Only monotonic time counts: clocks need not
// agree, and may jump. It may be used concurrently.
type Standing struct {
	term atomic.Pointer[term]

	// mu orders confirmations and lapses, and guards the fields below.
	mu    sync.Mutex
	timer *time.Timer
	// lapsed is called for each lapse.
	lapsed []func()
	// announced is true if the current term has lapsed and lapsed was called.
	announced bool
}

// term is a period without a lapse, as far as it is confirmed.
type term struct {
	number int
	until  time.Time
}

// NewStanding returns a standing that begins with its first confirmation.
func NewStanding() *Standing { return &Standing{} }

// Subscribe registers fn to be called when the standing has lapsed. It must not block, or call Confirm.
func (s *Standing) Subscribe(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lapsed = append(s.lapsed, fn)
}

// Current returns the number of the term, which changes with each lapse, and whether it is valid. A nil Standing is always valid.
func (s *Standing) Current() (number int, valid bool) {
	if s == nil {
		return 0, true
	}
	t := s.term.Load()
	if t == nil {
		return 0, false
	}
	return t.number, time.Now().Before(t.until)
}

// Confirm extends the standing by a confirmation that began at a time. After a lapse, a new term begins.
func (s *Standing) Confirm(begun time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, next := time.Now(), term{number: 1, until: begun.Add(Validity)}
	if before := s.term.Load(); before != nil {
		if !next.until.After(before.until) {
			return
		}
		next.number = before.number
		if !now.Before(before.until) {
			s.announce()
			next.number++
		}
	}
	if !now.Before(next.until) {
		return
	}
	s.announced = false
	s.term.Store(&next)
	if s.timer == nil {
		s.timer = time.AfterFunc(next.until.Sub(now), s.expire)
	} else {
		s.timer.Reset(next.until.Sub(now))
	}
}

// expire announces a lapse.
func (s *Standing) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, valid := s.Current(); !valid {
		s.announce()
	}
}

// announce calls the subscribers once for a lapse. mu is held.
func (s *Standing) announce() {
	if s.announced {
		return
	}
	s.announced = true
	for _, fn := range s.lapsed {
		fn()
	}
}

// Run confirms the standing by confirm, which queries the other replicas, whenever the Lease has not been renewed for confirmAfter,
// until ctx is canceled.
func (s *Standing) Run(ctx context.Context, confirm func(context.Context) error) {
	timer := time.NewTimer(confirmAfter)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(s.confirm(ctx, confirm))
	}
}

// confirm makes an attempt if one is due, and returns the time until the next.
func (s *Standing) confirm(ctx context.Context, confirm func(context.Context) error) time.Duration {
	t := s.term.Load()
	if t == nil {
		// This replica has not joined yet.
		return confirmAfter
	}
	begun := time.Now()
	if age := begun.Sub(t.until.Add(-Validity)); age < confirmAfter {
		return confirmAfter - age
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	if confirm(ctx) != nil {
		return confirmInterval
	}
	s.Confirm(begun)
	return confirmAfter - time.Since(begun)
}
