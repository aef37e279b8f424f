package flow

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const (
	testConcurrency, testPerTenant = 256, 192
	testWaiting                    = 1024
	testMinPerTenant               = 4
)

func newTestQueue(scarce func() bool) *Queue {
	return NewQueue(QueueOptions{
		Concurrency: testConcurrency, PerTenant: testPerTenant, MaxWaiting: testWaiting, MinPerTenant: testMinPerTenant, Scarce: scarce,
	})
}

// A flood of one namespace takes up no more than its share, and others have their turn at once; those of the flood are
// taken one after the other, or told to come again.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newTestQueue(nil)
		var taken, refused atomic.Int64
		for range testPerTenant + testWaiting + 7 {
			go func() {
				if err := queue.Acquire(t.Context(), "flood"); err != nil {
					if !errors.Is(err, ErrOverShare) {
						t.Error(err)
					}
					refused.Add(1)
					return
				}
				<-time.After(time.Second)
				taken.Add(1)
				queue.Release("flood")
			}()
			synctest.Wait()
		}
		if refused.Load() != 7 {
			t.Errorf("%d are refused, want 7", refused.Load())
		}
		start := time.Now()
		for i := range testConcurrency - testPerTenant {
			if err := queue.Acquire(t.Context(), fmt.Sprint("calm", i)); err != nil || time.Since(start) > 0 {
				t.Fatalf("another namespace waits for %s, %v", time.Since(start), err)
			}
		}
		// Now nothing is free: the next turn is that of who waits besides the flood.
		if err := queue.Acquire(t.Context(), "late"); err != nil || time.Since(start) > time.Second {
			t.Errorf("another namespace waits for %s, %v", time.Since(start), err)
		}
		queue.Release("late")
		for i := range testConcurrency - testPerTenant {
			queue.Release(fmt.Sprint("calm", i))
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if taken.Load() != testPerTenant+testWaiting {
			t.Errorf("%d of the flood were taken, want %d", taken.Load(), testPerTenant+testWaiting)
		}
		if queue.free != testConcurrency || len(queue.inFlight)+len(queue.waiting)+len(queue.order) > 0 {
			t.Errorf("in the end %d are free, %v are busy, %v wait", queue.free, queue.inFlight, queue.order)
		}
	})
}

// While processors are scarce, the namespace that sends most has fewer and fewer requests taken at a time, and others none
// the less; once they are not, or nobody else sends, it has as many as before.
func TestQueueUnderPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var scarce atomic.Bool
		queue := newTestQueue(scarce.Load)
		const clients = 64
		ctx, stop := context.WithCancel(t.Context())
		for range clients {
			go func() {
				for ctx.Err() == nil {
					queue.Observe("flood")
					if queue.Acquire(ctx, "flood") != nil {
						return
					}
					<-time.After(10 * time.Millisecond)
					queue.Release("flood")
				}
			}()
		}
		busy := func() int {
			// The turns that end at this instant have ended, and begun again.
			synctest.Wait()
			queue.mu.Lock()
			defer queue.mu.Unlock()
			return queue.inFlight["flood"]
		}
		calm := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
				queue.Observe("calm")
				start := time.Now()
				if err := queue.Acquire(ctx, "calm"); err != nil || time.Since(start) > 0 {
					t.Errorf("the other namespace waits for %s, %v", time.Since(start), err)
				}
				queue.Release("calm")
			}
		}
		scarce.Store(true)
		<-time.After(time.Second)
		if busy() != clients {
			t.Errorf("alone, %d are taken at a time, want all %d", busy(), clients)
		}
		calm(2 * time.Second)
		if busy() != testMinPerTenant {
			t.Errorf("beside another one, %d are taken at a time, want %d", busy(), testMinPerTenant)
		}
		scarce.Store(false)
		calm(2 * time.Second)
		if busy() != clients {
			t.Errorf("without pressure, %d are taken at a time, want all %d", busy(), clients)
		}
		scarce.Store(true)
		calm(2 * time.Second)
		<-time.After(2 * ActiveFor)
		if busy() != clients {
			t.Errorf("alone again, %d are taken at a time, want all %d", busy(), clients)
		}
		stop()
		<-time.After(time.Second)
	})
}

// Who goes away while it waits leaves its place to others.
func TestQueueCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newTestQueue(nil)
		for range testPerTenant {
			if err := queue.Acquire(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := queue.Acquire(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
		if len(queue.waiting)+len(queue.order) > 0 {
			t.Errorf("still waiting: %v", queue.order)
		}
		queue.Release("a")
		if err := queue.Acquire(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	})
}
