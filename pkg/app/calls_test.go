package app

import (
	"context"
	"errors"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// callDuration is the time that calls of the tests below are served.
const callDuration = 10 * time.Millisecond

// pass waits in virtual time.
func pass(d time.Duration) { <-time.After(d) }

// unmeasuredCalls returns the calls of one kind.
func unmeasuredCalls(replicas int) *calls {
	return limitedCalls(prometheus.NewHistogram(prometheus.HistogramOpts{Name: "waited"}), replicas)
}

// callFlood is many clients of one namespace, each of which makes one call after the other.
type callFlood struct {
	served, running, most atomic.Int64
	clients               sync.WaitGroup
}

// start runs clients until stop.
func (f *callFlood) start(t *testing.T, c *calls, namespace string, clients int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	for range clients {
		f.clients.Go(func() {
			for ctx.Err() == nil {
				end, err := c.Start(ctx, namespace, 0)
				if err != nil {
					return
				}
				running := f.running.Add(1)
				for most := f.most.Load(); running > most && !f.most.CompareAndSwap(most, running); most = f.most.Load() {
				}
				pass(callDuration)
				f.running.Add(-1)
				f.served.Add(1)
				end()
			}
		})
	}
	return func() {
		cancel()
		f.clients.Wait()
	}
}

// TestCallsOfNamespaces checks that a flood of calls has its share of the time of all replicas while calls of another namespace
// arrive, which do not wait, that two floods use their shares, and that a namespace alone is not slowed down.
func TestCallsOfNamespaces(t *testing.T) {
	alone, shared := int64(2*goruntime.GOMAXPROCS(0)), int64(max(1, goruntime.GOMAXPROCS(0)/2))
	for _, replicas := range []int{1, 3, 5} {
		synctest.Test(t, func(t *testing.T) {
			c := unmeasuredCalls(replicas)
			var flood callFlood
			defer flood.start(t, c, "flooding", 64)()
			pass(time.Second)
			if most, served := flood.most.Load(), flood.served.Load(); most != alone || served < alone*90 {
				t.Errorf("%d replicas: alone, %d calls are served at a time and %d in a second, want %d and about %d", replicas, most, served, alone, alone*100)
			}
			waited := func() time.Duration {
				started := time.Now()
				end, err := c.Start(t.Context(), "quiet", 0)
				if err != nil {
					t.Fatal(err)
				}
				defer end()
				waited := time.Since(started)
				pass(callDuration)
				return waited
			}
			// The first calls meet calls of a namespace that was alone.
			for range 20 {
				waited()
			}
			flood.most.Store(0)
			before, started := flood.served.Load(), time.Now()
			for range 300 {
				if w := waited(); w > 0 {
					t.Fatalf("%d replicas: a call of the quiet namespace waited %v", replicas, w)
				}
			}
			share := int64(time.Since(started)/callDuration) * shared / int64(pressedShare*replicas)
			if most, served := flood.most.Load(), flood.served.Load()-before; most > shared || served > share+2 || served < share*8/10 {
				t.Errorf("%d replicas: %d calls of the flood are served at a time and %d in all, want %d and about %d", replicas, most, served, shared, share)
			}
			var another callFlood
			stop := another.start(t, c, "also flooding", 64)
			pass(2 * callsShareFor)
			before = flood.served.Load() + another.served.Load()
			pass(time.Second)
			if served := flood.served.Load() + another.served.Load() - before; served < 2*shared*90 {
				t.Errorf("%d replicas: %d calls of two floods are served in a second, want about %d: neither pauses for the other", replicas, served, 2*shared*100)
			}
			stop()
			pass(callsShareFor + time.Second)
			before = flood.served.Load()
			pass(time.Second)
			if served := flood.served.Load() - before; served < alone*90 {
				t.Errorf("%d replicas: alone once more, %d calls are served in a second, want about %d", replicas, served, alone*100)
			}
		})
	}
}

// TestCallsThatLast checks that calls that are served for long, such as a write whose webhook writes, delay others of their
// namespace for maxTurn only, and that a call whose client gave up is not counted.
func TestCallsThatLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := unmeasuredCalls(1)
		var flood callFlood
		defer flood.start(t, c, "other", 1)()
		start := func() func() {
			end, err := c.Start(t.Context(), "ns", 0)
			if err != nil {
				t.Fatal(err)
			}
			return end
		}
		pass(callDuration)
		var ends []func()
		began := time.Now()
		for range 3 * max(1, goruntime.GOMAXPROCS(0)/2) {
			ends = append(ends, start())
		}
		if waited := time.Since(began); waited < 2*maxTurn || waited > 2*maxTurn+callDuration {
			t.Errorf("calls waited %v behind calls that last, want twice %v", waited, maxTurn)
		}
		gone, giveUp := context.WithTimeout(t.Context(), callDuration)
		defer giveUp()
		if _, err := c.Start(gone, "ns", 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the error for a client that gave up is %v", err)
		}
		for _, end := range ends {
			end()
		}
		began = time.Now()
		start()()
		if waited := time.Since(began); waited > 0 {
			t.Errorf("a call waited %v after all others ended", waited)
		}
	})
}
