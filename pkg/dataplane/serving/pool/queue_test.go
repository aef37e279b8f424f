package pool

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// TestColdStartGivenUp checks that the measurement of a cold start ends when its requests have ended: the next request begins another one.
func TestColdStartGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{}
		s := h.pools()
		s.SetRevision(revision(1))
		p := poolOf(s)
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			r := p.Request()
			if grant := r.Acquire(waiter{ctx}); grant.Backend != nil || !r.coldStart || grant.Rejection != serving.TimedOut {
				t.Errorf("got %+v, want the first request of a cold start to time out", grant)
			}
			cancel()
		}
	})
}
