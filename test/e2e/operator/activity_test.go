package operator

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

const (
	// attemptLimit bounds one attempt of a call, giveUp a call with all its attempts.
	attemptLimit, giveUp = 10 * time.Second, 30 * time.Second
	// retryPause is how long a client waits before it tries again.
	retryPause = 100 * time.Millisecond
	// keptFailures is how many failures of an activity are told.
	keptFailures = 8
)

// activity is one sort of calls, made again and again. A call that fails is tried again, as clients do.
type activity struct {
	name string

	mu sync.Mutex
	// calls that succeeded, attempts of them that failed, and calls that never succeeded.
	calls, failed, lost int      // guarded by mu
	failures            []string // guarded by mu; the first ones
	slowest             time.Duration
}

// run makes one call after the other, each begun every so often, until stop is closed and the call under way has ended.
// number tells a call from all others.
func (a *activity) run(ctx context.Context, stop <-chan struct{}, every time.Duration, call func(ctx context.Context, number int) error) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for number := 0; ; number++ {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		a.call(ctx, func(ctx context.Context) error { return call(ctx, number) })
	}
}

// call makes one call, with as many attempts as it takes.
func (a *activity) call(ctx context.Context, call func(context.Context) error) {
	started := time.Now()
	for {
		attempt, cancel := context.WithTimeout(ctx, attemptLimit)
		began := time.Now()
		err := call(attempt)
		cancel()
		a.mu.Lock()
		switch {
		case err == nil:
			a.calls++
			a.slowest = max(a.slowest, time.Since(started))
		case time.Since(started) > giveUp:
			a.lost++
			a.note(began, fmt.Errorf("given up: %w", err))
		default:
			a.note(began, err)
		}
		again := err != nil && time.Since(started) <= giveUp && ctx.Err() == nil
		a.mu.Unlock()
		if !again {
			return
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return
		}
	}
}

// note counts an attempt that failed. The caller holds mu.
func (a *activity) note(began time.Time, err error) {
	a.failed++
	if len(a.failures) < keptFailures {
		a.failures = append(a.failures, fmt.Sprintf("%s after %s: %v", began.Format("15:04:05.000"), time.Since(began).Round(time.Millisecond), err))
	}
}

// report tells what was done, and fails the test where nothing was, or a call never succeeded.
func (a *activity) report(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	t.Logf("%s: %d succeeded, %d attempts failed, slowest %s", a.name, a.calls, a.failed, a.slowest.Round(time.Millisecond))
	for _, failure := range a.failures {
		t.Log("  ", failure)
	}
	if a.calls == 0 || a.lost > 0 {
		t.Errorf("%s: %d succeeded, and %d never did", a.name, a.calls, a.lost)
	}
}

// succeeded is how many calls did so far.
func (a *activity) succeeded() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls
}

// mustNotHaveFailed fails the test if any attempt failed.
func (a *activity) mustNotHaveFailed(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed > 0 {
		t.Errorf("%s: %d of %d attempts failed", a.name, a.failed, a.failed+a.calls)
	}
}

// attemptsFailed is how many did.
func (a *activity) attemptsFailed() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// worst is the longest that a call took until it succeeded.
func (a *activity) worst() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.slowest
}
