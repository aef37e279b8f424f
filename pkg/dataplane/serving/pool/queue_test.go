package gateway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestColdStartGivenUp covers that a cold start which nobody waits for any more is not measured on: the next request
// begins one of its own.
func TestColdStartGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{}
		g := New(h.options())
		g.SetRevision(revision(1))
		p := poolOf(g)
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if inst, first, refusal := p.acquire(ctx, false); inst != nil || !first || refusal != tooLate {
				t.Errorf("got %v, %v, %v, want the first request of a cold start to be too late", inst, first, refusal)
			}
			cancel()
		}
	})
}
