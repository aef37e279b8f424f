// Package backoff computes and waits for the delays between attempts.
//
// It is not k8s.io/apimachinery/pkg/util/wait.Backoff because that computes each delay from the one before: the callers
// here know the number of failures, which they also report or reset.
package backoff

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Delay returns the delay after so many consecutive failures: 0 after none, first after 1, and twice as much with each
// further one, up to limit.
func Delay(failures int, first, limit time.Duration) time.Duration {
	if failures <= 0 || first <= 0 {
		return 0
	}
	delay := first
	for range failures - 1 {
		if delay > limit/2 {
			return limit
		}
		delay *= 2
	}
	return min(delay, limit)
}

// Sleep waits for d. It returns false if ctx is canceled first.
func Sleep(ctx context.Context, c clock.Clock, d time.Duration) bool {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}
