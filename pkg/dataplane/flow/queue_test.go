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

// TestQueue checks that a flood of one tenant uses no more than its share while other tenants start at once, and that requests of
// the flood start one after the other or are rejected.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newTestQueue(nil)
		var admitted, refused atomic.Int64
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
				admitted.Add(1)
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
		// The queue is full now: the next free slot is for a tenant other than the flood.
		if err := queue.Acquire(t.Context(), "late"); err != nil || time.Since(start) > time.Second {
			t.Errorf("another namespace waits for %s, %v", time.Since(start), err)
		}
		queue.Release("late")
		for i := range testConcurrency - testPerTenant {
			queue.Release(fmt.Sprint("calm", i))
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if admitted.Load() != testPerTenant+testWaiting {
			t.Errorf("%d of the flood were admitted, want %d", admitted.Load(), testPerTenant+testWaiting)
		}
		if queue.free != testConcurrency || len(queue.inFlight)+len(queue.waiting)+len(queue.order) > 0 {
			t.Errorf("in the end %d are free, %v are busy, %v wait", queue.free, queue.inFlight, queue.order)
		}
	})
}

// TestQueueUnderPressure checks that the window of the tenant that sends most shrinks while processors are scarce, without effect
// on other tenants, and recovers afterwards or when no other tenant sends.
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
			// Requests that end at this instant have been replaced.
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
			t.Errorf("alone, %d are admitted at a time, want all %d", busy(), clients)
		}
		calm(2 * time.Second)
		if busy() != testMinPerTenant {
			t.Errorf("beside another one, %d are admitted at a time, want %d", busy(), testMinPerTenant)
		}
		scarce.Store(false)
		calm(2 * time.Second)
		if busy() != clients {
			t.Errorf("without pressure, %d are admitted at a time, want all %d", busy(), clients)
		}
		scarce.Store(true)
		calm(2 * time.Second)
		<-time.After(2 * ActiveFor)
		if busy() != clients {
			t.Errorf("alone again, %d are admitted at a time, want all %d", busy(), clients)
		}
		stop()
		<-time.After(time.Second)
	})
}

// TestQueueCanceled checks that a canceled request no longer waits.
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
