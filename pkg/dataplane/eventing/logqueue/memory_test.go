package logqueue

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

// TestMemory admits at least one segment, unless the namespace's caches are full: others would fill them further.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := flow.NewBudget(1000, 10)
		m := NewMemories(budget, clock.RealClock{}).Of("a")
		admitted := make(chan struct{})
		acquire := func(bytes int) {
			go func() {
				if m.Acquire(t.Context(), bytes) {
					admitted <- struct{}{}
				}
			}()
		}
		expect := func(want bool, what string) {
			t.Helper()
			select {
			case <-admitted:
				if !want {
					t.Errorf("%s: admitted", what)
				}
			case <-time.After(time.Minute):
				if want {
					t.Errorf("%s: not admitted", what)
				}
			}
		}
		acquire(2000)
		expect(true, "a large segment alone")
		acquire(10)
		expect(false, "another one")
		m.Release(2000)
		expect(true, "another one after it")
		m.Release(10)

		budget.Cache("a", 600)
		acquire(10)
		expect(false, "the first one, with full caches")
		budget.Cache("a", -200)
		expect(true, "the first one, with smaller caches")
		budget.Cache("a", -400)
		m.Release(10)
		if budget.Used() != 0 {
			t.Errorf("%d bytes remain", budget.Used())
		}
	})
}
