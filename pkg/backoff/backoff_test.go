package backoff

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

func TestDelay(t *testing.T) {
	for _, test := range []struct {
		failures           int
		first, limit, want time.Duration
	}{
		{failures: -1, first: 1, limit: 10, want: 0},
		{failures: 0, first: 1, limit: 10, want: 0},
		{failures: math.MaxInt, first: 0, limit: 10, want: 0},
		{failures: 1, first: 1, limit: 10, want: 1},
		{failures: 2, first: 1, limit: 10, want: 2},
		{failures: 3, first: 1, limit: 10, want: 4},
		{failures: 4, first: 1, limit: 10, want: 8},
		{failures: 5, first: 1, limit: 10, want: 10},
		{failures: math.MaxInt, first: 1, limit: 10, want: 10},
		{failures: math.MaxInt, first: time.Second, limit: math.MaxInt64, want: math.MaxInt64},
		{failures: 4, first: 1, limit: 8, want: 8},
		{failures: 2, first: 3, limit: 7, want: 6},
		{failures: 3, first: 3, limit: 7, want: 7},
		{failures: 1, first: 10, limit: 5, want: 5},
	} {
		if got := Delay(test.failures, test.first, test.limit); got != test.want {
			t.Errorf("Delay(%d, %d, %d) = %d, want %d", test.failures, test.first, test.limit, got, test.want)
		}
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if !Sleep(ctx, clock.RealClock{}, 3*time.Second) || time.Since(began) != 3*time.Second {
			t.Errorf("slept for %v, want 3s", time.Since(began))
		}
		if Sleep(ctx, clock.RealClock{}, 3*time.Second) || time.Since(began) != 5*time.Second {
			t.Errorf("ended after %v, want false when ctx is canceled after 5s", time.Since(began))
		}
	})
}
