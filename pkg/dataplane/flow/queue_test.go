package flow

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
				if err := queue.Acquire(t.Context(), "flood", 1); err != nil {
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
			if err := queue.Acquire(t.Context(), fmt.Sprint("calm", i), 1); err != nil || time.Since(start) > 0 {
				t.Fatalf("another namespace waits for %s, %v", time.Since(start), err)
			}
		}
		// The queue is full now: the next free slot is for a tenant other than the flood.
		if err := queue.Acquire(t.Context(), "late", 1); err != nil || time.Since(start) > time.Second {
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
			t.Errorf("at the end %d are free, %v are busy, %v wait", queue.free, queue.inFlight, queue.order)
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
					queue.Observe("flood", 1)
					if queue.Acquire(ctx, "flood", 1) != nil {
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
				queue.Observe("calm", 1)
				start := time.Now()
				if err := queue.Acquire(ctx, "calm", 1); err != nil || time.Since(start) > 0 {
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
			if err := queue.Acquire(t.Context(), "a", 1); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := queue.Acquire(ctx, "a", 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error is %v", err)
		}
		if len(queue.waiting)+len(queue.order) > 0 {
			t.Errorf("still waiting: %v", queue.order)
		}
		queue.Release("a")
		if err := queue.Acquire(t.Context(), "a", 1); err != nil {
			t.Error(err)
		}
	})
}

// TestQueueByCost compares, in virtual time, how long a burst of a tenant with small requests waits beside a flood of batches,
// if each request counts the same and if requests count by their cost.
func TestQueueByCost(t *testing.T) {
	const (
		processors, unit      = 2, 100 * time.Microsecond
		batch, burst, clients = 50, 20, 64
	)
	for _, test := range []struct {
		name string
		// cost returns the cost of a request that takes a number of units.
		cost             func(units int) Cost
		fastest, slowest time.Duration
	}{
		// The tenants alternate: a batch starts after each small request.
		{name: "by count", cost: func(int) Cost { return 1 }, fastest: 9 * batch * unit, slowest: (burst + 2) * batch * unit},
		// The whole burst starts before the next batch, on the processor whose batch ends first.
		{name: "by cost", cost: func(units int) Cost { return CostOf(units, 0) }, fastest: burst / processors * unit, slowest: (batch + burst) * unit},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := NewQueue(QueueOptions{Concurrency: processors, PerTenant: processors})
				ctx, stop := context.WithCancel(t.Context())
				serve := func(tenant string, units int) {
					queue.Observe(tenant, test.cost(units))
					if queue.Acquire(ctx, tenant, test.cost(units)) != nil {
						return
					}
					<-time.After(time.Duration(units) * unit)
					queue.Release(tenant)
				}
				for range clients {
					go func() {
						for ctx.Err() == nil {
							serve("flood", batch)
						}
					}()
				}
				<-time.After(time.Second)
				start := time.Now()
				var requests sync.WaitGroup
				for range burst {
					requests.Go(func() { serve("quiet", 1) })
				}
				requests.Wait()
				if took := time.Since(start); took < test.fastest || took > test.slowest {
					t.Errorf("the burst takes %s, want %s to %s", took, test.fastest, test.slowest)
				}
				stop()
				synctest.Wait()
				<-time.After(time.Second)
			})
		})
	}
}

// TestQueueThrottlesByCost checks that the tenant whose requests cost most is throttled, even if another sends more requests.
func TestQueueThrottlesByCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newTestQueue(func() bool { return true })
		window := func(tenant string) int { return queue.active[tenant].window }
		for range 5 {
			for range 50 {
				queue.Observe("small", 1)
			}
			queue.Observe("batches", CostOf(1000, 1<<20))
			<-time.After(ThrottleInterval)
		}
		queue.Observe("small", 1)
		if window("small") != testPerTenant || window("batches") != testMinPerTenant {
			t.Errorf("the windows are %d for small requests and %d for batches, want %d and %d",
				window("small"), window("batches"), testPerTenant, testMinPerTenant)
		}
	})
}

func TestCostOf(t *testing.T) {
	for _, test := range []struct {
		count int
		bytes int64
		want  Cost
	}{
		{count: 1, want: 1},
		{count: 1, bytes: bytesPerCost - 1, want: 1},
		{count: 1, bytes: 1 << 20, want: 33},
		{count: 100, bytes: bytesPerCost, want: 101},
		{bytes: 3 * bytesPerCost, want: 3},
	} {
		if got := CostOf(test.count, test.bytes); got != test.want {
			t.Errorf("%d with %d bytes cost %d, want %d", test.count, test.bytes, got, test.want)
		}
	}
}
