package ingress

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A flood of one namespace takes up no more than its share, and others have their turn at once; those of the flood are
// taken one after the other, or told to come again.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var taken, refused atomic.Int64
		for range maxAcceptedOfOne + maxWaiting + 7 {
			go func() {
				if err := turns.enter(t.Context(), "flood"); err != nil {
					if !errors.Is(err, errShare) {
						t.Error(err)
					}
					refused.Add(1)
					return
				}
				<-time.After(time.Second)
				taken.Add(1)
				turns.leave("flood")
			}()
			synctest.Wait()
		}
		if refused.Load() != 7 {
			t.Errorf("%d are refused, want 7", refused.Load())
		}
		start := time.Now()
		for i := range maxAccepted - maxAcceptedOfOne {
			if err := turns.enter(t.Context(), fmt.Sprint("calm", i)); err != nil || time.Since(start) > 0 {
				t.Fatalf("another namespace waits for %s, %v", time.Since(start), err)
			}
		}
		// Now nothing is free: the next turn is that of who waits besides the flood.
		if err := turns.enter(t.Context(), "late"); err != nil || time.Since(start) > time.Second {
			t.Errorf("another namespace waits for %s, %v", time.Since(start), err)
		}
		turns.leave("late")
		for i := range maxAccepted - maxAcceptedOfOne {
			turns.leave(fmt.Sprint("calm", i))
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if taken.Load() != maxAcceptedOfOne+maxWaiting {
			t.Errorf("%d of the flood were taken, want %d", taken.Load(), maxAcceptedOfOne+maxWaiting)
		}
		if turns.free != maxAccepted || len(turns.busy)+len(turns.waiting)+len(turns.order) > 0 {
			t.Errorf("in the end %d are free, %v are busy, %v wait", turns.free, turns.busy, turns.order)
		}
	})
}

// While processors are scarce, the namespace that sends most has fewer and fewer requests taken at a time, and others none
// the less; once they are not, or nobody else sends, it has as many as before.
func TestTurnsUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var scarce atomic.Bool
		turns.scarce = scarce.Load
		const clients = 64
		ctx, stop := context.WithCancel(t.Context())
		for range clients {
			go func() {
				for ctx.Err() == nil {
					turns.saw("flood")
					if turns.enter(ctx, "flood") != nil {
						return
					}
					<-time.After(10 * time.Millisecond)
					turns.leave("flood")
				}
			}()
		}
		busy := func() int {
			// The turns that end at this instant have ended, and begun again.
			synctest.Wait()
			turns.mu.Lock()
			defer turns.mu.Unlock()
			return turns.busy["flood"]
		}
		calm := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
				turns.saw("calm")
				start := time.Now()
				if err := turns.enter(ctx, "calm"); err != nil || time.Since(start) > 0 {
					t.Errorf("the other namespace waits for %s, %v", time.Since(start), err)
				}
				turns.leave("calm")
			}
		}
		scarce.Store(true)
		<-time.After(time.Second)
		if busy() != clients {
			t.Errorf("alone, %d are taken at a time, want all %d", busy(), clients)
		}
		calm(2 * time.Second)
		if busy() != leastAccepted {
			t.Errorf("beside another one, %d are taken at a time, want %d", busy(), leastAccepted)
		}
		scarce.Store(false)
		calm(2 * time.Second)
		if busy() != clients {
			t.Errorf("without pressure, %d are taken at a time, want all %d", busy(), clients)
		}
		scarce.Store(true)
		calm(2 * time.Second)
		<-time.After(2 * activeFor)
		if busy() != clients {
			t.Errorf("alone again, %d are taken at a time, want all %d", busy(), clients)
		}
		stop()
		<-time.After(time.Second)
	})
}

// Who goes away while it waits leaves its place to others.
func TestTurnsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		for range maxAcceptedOfOne {
			if err := turns.enter(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := turns.enter(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
		if len(turns.waiting)+len(turns.order) > 0 {
			t.Errorf("still waiting: %v", turns.order)
		}
		turns.leave("a")
		if err := turns.enter(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	})
}

// The gauge of a Handler is closed with it: files do not stay open.
func TestCloseGauge(t *testing.T) {
	closed := 0
	h := New(Options{})
	gauge := h.turns.close
	h.turns.close = func() { gauge(); closed++ }
	h.Close()
	// A request that is late is no fault.
	h.turns.saw("late")
	if closed != 1 {
		t.Errorf("the gauge was closed %d times", closed)
	}
}
