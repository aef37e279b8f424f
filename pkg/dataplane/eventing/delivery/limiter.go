package broker

import (
	"time"
)

// Bounds of a limiter.
const (
	initialLimit = 8
	maxLimit     = 256
	// patience is how much longer than at best answers may take before the limit stops growing, and slack what they
	// may take anyhow: on a busy machine short ones vary a lot.
	patience = 2
	slack    = 10 * time.Millisecond
	// forget is how long the shortest time of an answer is remembered.
	forget = 30 * time.Second
	// manyFailures is the number of failures in a row from which on attempts are kept failingPause apart: a backlog of
	// retries to somebody who takes nothing is not to cost others much.
	manyFailures = 100
	failingPause = 2 * time.Millisecond
	// minPause and maxPause bound the time between attempts at a subscriber that cannot take even one at a time.
	minPause, maxPause = 10 * time.Millisecond, time.Second
)

// limiter decides how many attempts at an endpoint may be under way at a time: more and more as long as answers come
// as fast as ever, half as many when the endpoint says that it is overloaded, or does not answer (eventing Event
// Acknowledgement and Delivery Retry: congestion control). It starts as fast as TCP does. Not safe for concurrent
// use.
type limiter struct {
	limit float64
	// threshold is the limit up to which growth doubles it in each round.
	threshold float64
	// fastest is the shortest time of an answer since fastestSince.
	fastest      time.Duration
	fastestSince time.Time
	// cut is when the limit was halved last: attempts begun before tell nothing new.
	cut time.Time
	// pause keeps attempts apart that overload an endpoint even one by one; until is when the next one may begin.
	pause time.Duration
	until time.Time
	// failures is the number of attempts that failed since one succeeded.
	failures int
}

func newLimiter() limiter { return limiter{limit: initialLimit, threshold: maxLimit} }

// allows tells whether another attempt may begin while some are under way, and else when that may be, if only time
// is in the way.
func (l *limiter) allows(underWay int, now time.Time) (ok bool, at time.Time) {
	if underWay >= int(l.limit) {
		return false, time.Time{}
	}
	if now.Before(l.until) {
		return false, l.until
	}
	pause := l.pause
	if l.failures >= manyFailures {
		pause = max(pause, failingPause)
	}
	if pause > 0 {
		l.until = now.Add(pause)
	}
	return true, time.Time{}
}

// ended notes whether an attempt succeeded.
func (l *limiter) ended(success bool) {
	if l.failures++; success {
		l.failures = 0
	}
}

// answered notes an answer that took some time, while a number of attempts were under way.
func (l *limiter) answered(took time.Duration, underWay int, now time.Time) {
	if l.pause /= 2; l.pause < minPause {
		l.pause = 0
	}
	if l.fastest == 0 || took < l.fastest || now.Sub(l.fastestSince) > forget {
		l.fastest, l.fastestSince = took, now
	}
	// A limit that is not reached says nothing about a greater one.
	if underWay < int(l.limit) || took > patience*l.fastest+slack {
		return
	}
	if l.limit < l.threshold {
		l.limit++
	} else {
		l.limit += 1 / l.limit
	}
	l.limit = min(l.limit, maxLimit)
}

// overloaded notes that an attempt which began at some time met an overloaded endpoint, or none. pace tells that the
// endpoint wants fewer requests, not just fewer at a time, and after how long to come again, if it says so.
func (l *limiter) overloaded(began time.Time, pace bool, after time.Duration, now time.Time) {
	if after > 0 {
		l.until = later(l.until, now.Add(min(after, time.Minute)))
	}
	if pace && l.limit < 2 {
		l.pause = min(max(2*l.pause, minPause), maxPause)
	}
	if began.Before(l.cut) {
		return
	}
	l.cut = now
	l.limit = max(l.limit/2, 1)
	l.threshold = max(l.limit, initialLimit)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
