package delivery

import "time"

// Bounds of a limiter.
const (
	// InitialWindow is the number of concurrent attempts of a new Queue.
	InitialWindow = 8
	maxWindow     = 256
	// The window does not grow while responses take longer than latencyFactor times the minimum, plus latencySlack: short
	// latencies vary a lot on a busy machine.
	latencyFactor = 2
	latencySlack  = 10 * time.Millisecond
	// latencyMemory is the time for which the minimum latency is remembered.
	latencyMemory = 30 * time.Second
	// After manyFailures in a row, attempts are at least failingPause apart, so that the retries to a failing endpoint cost
	// others little.
	manyFailures = 100
	failingPause = 2 * time.Millisecond
	// minPause and maxPause bound the time between attempts at an endpoint that is overloaded by one at a time.
	minPause, maxPause = 10 * time.Millisecond, time.Second
)

// limiter is the concurrency limiter of an endpoint: additive increase while responses are quick, multiplicative decrease
// when the endpoint is overloaded or silent (eventing Event Acknowledgement and Delivery Retry: congestion control). It
// starts like TCP. It is not safe for concurrent use.
type limiter struct {
	window float64
	// threshold is the window up to which growth doubles it in each round.
	threshold float64
	// fastest is the minimum latency since fastestSince.
	fastest      time.Duration
	fastestSince time.Time
	// cut is the time of the last decrease. Attempts started before carry no new information.
	cut time.Time
	// pause is the minimum time between attempts; until is the earliest time of the next one.
	pause time.Duration
	until time.Time
	// failures is the number of failed attempts since the last success.
	failures int
	// silent is true after an attempt that was not answered, until one is.
	silent bool
}

func newLimiter() limiter { return limiter{window: InitialWindow, threshold: maxWindow} }

// allows reports whether another attempt may start while some are in flight. Otherwise it returns the time of the next one,
// if that is only a question of time.
func (l *limiter) allows(inFlight int, now time.Time) (ok bool, at time.Time) {
	if inFlight >= int(l.window) {
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

// observe notes the outcome of an attempt, and the number of attempts in flight before it. It returns true if the endpoint
// was silent and answers.
func (l *limiter) observe(o *Outcome, started time.Time, inFlight int, now time.Time) (answers bool) {
	switch {
	case o.Skipped:
		l.until = later(l.until, now.Add(o.RetryAfter))
		return false
	case o.Overloaded:
		l.overloaded(started, o.Throttled, o.RetryAfter, now)
		l.silent = l.silent || o.Unanswered
	default:
		l.answered(now.Sub(started), inFlight, now)
		answers, l.silent = l.silent, false
	}
	l.ended(o.Event == Succeeded)
	return answers
}

// ended notes the end of an attempt.
func (l *limiter) ended(success bool) {
	if l.failures++; success {
		l.failures = 0
	}
}

// answered notes the latency of an answer, and the number of attempts in flight before it.
func (l *limiter) answered(took time.Duration, inFlight int, now time.Time) {
	if l.pause /= 2; l.pause < minPause {
		l.pause = 0
	}
	if l.fastest == 0 || took < l.fastest || now.Sub(l.fastestSince) > latencyMemory {
		l.fastest, l.fastestSince = took, now
	}
	// A window that is not used up says nothing about a larger one.
	if inFlight < int(l.window) || took > latencyFactor*l.fastest+latencySlack {
		return
	}
	if l.window < l.threshold {
		l.window++
	} else {
		l.window += 1 / l.window
	}
	l.window = min(l.window, maxWindow)
}

// overloaded notes that the endpoint was overloaded, or silent, at an attempt that started at some time. throttled is true if
// the endpoint requires fewer requests per second, and after is its Retry-After, if any.
func (l *limiter) overloaded(started time.Time, throttled bool, after time.Duration, now time.Time) {
	if after > 0 {
		l.until = later(l.until, now.Add(min(after, time.Minute)))
	}
	if throttled && l.window < 2 {
		l.pause = min(max(2*l.pause, minPause), maxPause)
	}
	if started.Before(l.cut) {
		return
	}
	l.cut = now
	l.window = max(l.window/2, 1)
	l.threshold = max(l.window, InitialWindow)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
