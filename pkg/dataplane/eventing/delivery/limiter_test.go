package delivery

import (
	"testing"
	"time"
)

var epoch = time.Unix(1700000000, 0)

// round answers as many attempts as the limit allows; new ones begin at once, up to the limit at that time.
func (l *limiter) round(took time.Duration, now time.Time) {
	for range int(l.window) {
		l.answered(took, int(l.window), now)
	}
}

func expectLimit(t *testing.T, l *limiter, want int) {
	t.Helper()
	if have := int(l.window); have != want {
		t.Fatalf("the limit is %d, want %d", have, want)
	}
}

// eventing Event Acknowledgement and Delivery Retry-6: congestion control.
func TestLimiterGrowsByRounds(t *testing.T) {
	l := newLimiter()
	for _, want := range []int{8, 16, 32, 64, 128, 256, 256} {
		expectLimit(t, &l, want)
		l.round(time.Millisecond, epoch)
	}
}

func TestLimiterGrowsSlowlyBeyondWhereItWasCut(t *testing.T) {
	l := newLimiter()
	l.round(time.Millisecond, epoch)
	l.round(time.Millisecond, epoch)
	l.overloaded(epoch, false, 0, epoch)
	expectLimit(t, &l, 16)
	for _, want := range []int{16, 17, 18} {
		l.round(time.Millisecond, epoch)
		expectLimit(t, &l, want)
	}
}

func TestLimiterDoesNotGrow(t *testing.T) {
	for name, answer := range map[string]func(*limiter){
		"when fewer are in flight": func(l *limiter) { l.answered(time.Second, InitialWindow-1, epoch) },
		"when answers take longer": func(l *limiter) { l.answered(latencyFactor*time.Second+latencySlack+1, InitialWindow, epoch) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimiter()
			l.answered(time.Second, 1, epoch)
			for range 100 {
				answer(&l)
			}
			expectLimit(t, &l, InitialWindow)
		})
	}
}

func TestLimiterForgetsTheFastestAnswer(t *testing.T) {
	l := newLimiter()
	l.answered(time.Millisecond, 1, epoch)
	l.answered(time.Second, InitialWindow, epoch.Add(latencyMemory))
	expectLimit(t, &l, InitialWindow)
	l.answered(time.Second, InitialWindow, epoch.Add(latencyMemory+1))
	expectLimit(t, &l, InitialWindow+1)
}

// Failures of attempts that were in flight together count once.
func TestLimiterHalvesOncePerRound(t *testing.T) {
	l := newLimiter()
	began, now := epoch, epoch.Add(time.Second)
	for range 8 {
		l.overloaded(began, false, 0, now)
	}
	expectLimit(t, &l, 4)
	began, now = now, now.Add(time.Second)
	for range 4 {
		l.overloaded(began, false, 0, now)
	}
	expectLimit(t, &l, 2)
}

func TestLimiterAlwaysAllowsOne(t *testing.T) {
	l := newLimiter()
	now := epoch
	for range 20 {
		l.overloaded(now, false, 0, now)
		now = now.Add(time.Second)
	}
	expectLimit(t, &l, 1)
	if ok, _ := l.allows(0, now); !ok {
		t.Error("no attempt is allowed although none is in flight")
	}
	if ok, at := l.allows(1, now); ok || !at.IsZero() {
		t.Errorf("a second attempt: %v, %v; want none before the first ended", ok, at)
	}
}

// A 429 answer to the only attempt in flight delays the next ones.
func TestLimiterPausesAfterTooManyRequests(t *testing.T) {
	l := newLimiter()
	now := epoch
	for l.window > 1 {
		l.overloaded(now, true, 0, now)
		now = now.Add(time.Second)
	}
	pause := minPause
	for range 10 {
		l.overloaded(now, true, 0, now)
		if ok, _ := l.allows(0, now); !ok {
			t.Fatal("the first attempt after a pause is not allowed")
		}
		if ok, at := l.allows(0, now); ok || !at.Equal(now.Add(pause)) {
			t.Fatalf("the attempt after that: %v at %v, want one after %v", ok, at.Sub(now), pause)
		}
		now = now.Add(maxPause)
		pause = min(2*pause, maxPause)
	}
	for range 10 {
		l.answered(time.Millisecond, 1, now)
	}
	for range 2 {
		if ok, _ := l.allows(0, now); !ok {
			t.Fatal("attempts are still delayed after ten answers")
		}
	}
}

func TestLimiterWaitsAsLongAsAsked(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: time.Minute} {
		l := newLimiter()
		l.overloaded(epoch, false, asked, epoch)
		l.overloaded(epoch, false, asked/2, epoch)
		if ok, at := l.allows(0, epoch.Add(want-1)); ok || !at.Equal(epoch.Add(want)) {
			t.Errorf("with Retry-After %v: %v at %v, want none before %v", asked, ok, at.Sub(epoch), want)
		}
		if ok, _ := l.allows(0, epoch.Add(want)); !ok {
			t.Errorf("with Retry-After %v: none is allowed after that", asked)
		}
	}
}
