package operator

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

const (
	// attemptLimit is the timeout of one attempt of a call if attempts may fail: clients retry soon. steadyLimit is the timeout in tests in which no
	// attempt may fail, not even while the machine is slow for some seconds. giveUp is the timeout of a call with all attempts.
	attemptLimit, steadyLimit, giveUp = 10 * time.Second, 40 * time.Second, time.Minute
	// retryPause is the pause of a client before it retries.
	retryPause = 100 * time.Millisecond
	// keptFailures is the number of failures that an activity reports.
	keptFailures = 8
)

// activity is one kind of repeated calls. A failed call is retried, as clients do.
type activity struct {
	name string
	// limit is the timeout of one attempt.
	limit time.Duration

	mu sync.Mutex
	// calls is the number of successful calls, failed of failed attempts, lost of calls that never succeeded.
	calls, failed, lost int      // guarded by mu
	failures            []string // guarded by mu; the first ones
	slowest             time.Duration
}

// run makes one call after the other at an interval, until stop is closed and the call in flight ended.
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

// call makes one call with as many attempts as it needs.
func (a *activity) call(ctx context.Context, call func(context.Context) error) {
	started := time.Now()
	for {
		attempt, cancel := context.WithTimeout(ctx, a.limit)
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
		retry := err != nil && time.Since(started) <= giveUp && ctx.Err() == nil
		a.mu.Unlock()
		if !retry {
			return
		}
		select {
		case <-time.After(retryPause):
		case <-ctx.Done():
			return
		}
	}
}

// note counts a failed attempt. The caller holds mu.
func (a *activity) note(began time.Time, err error) {
	a.failed++
	if len(a.failures) < keptFailures {
		a.failures = append(a.failures, fmt.Sprintf("%s after %s: %v", began.Format("15:04:05.000"), time.Since(began).Round(time.Millisecond), err))
	}
}

// report logs the activity, and fails the test if it made no call or a call never succeeded.
func (a *activity) report(t *testing.T) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	t.Logf("%s: %d succeeded, %d attempts failed, slowest %s", a.name, a.calls, a.failed, a.slowest.Round(time.Millisecond))
	for _, failure := range a.failures {
		t.Log("  ", failure)
	}
	if a.calls == 0 || a.lost > 0 {
		t.Errorf("%s: %d succeeded, %d never succeeded", a.name, a.calls, a.lost)
	}
}

// succeeded returns the number of successful calls.
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

// attemptsFailed returns the number of failed attempts.
func (a *activity) attemptsFailed() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

// worst returns the longest time until a call succeeded.
func (a *activity) worst() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.slowest
}
