package fairness

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

// machine is a processor for the requests of tenants: each uses it for some time, one after the other.
type machine struct {
	mu sync.Mutex
	// free is the time at which it has finished all requests.
	free time.Time
	// late is the longest wait since the previous call of looked.
	late time.Duration
}

// use waits until the machine has done some work.
func (m *machine) use(work time.Duration) {
	m.mu.Lock()
	now := time.Now()
	start := m.free
	if start.Before(now) {
		start = now
	}
	m.free = start.Add(work)
	m.late = max(m.late, start.Sub(now))
	wait := m.free.Sub(now)
	m.mu.Unlock()
	<-time.After(wait)
}

// looked returns the longest wait since the previous call.
func (m *machine) looked() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	late := m.late
	m.late = 0
	return late
}

// waiter waits until a context is canceled.
type waiter struct{ ctx context.Context }

func (w waiter) Wait() (context.Context, context.CancelFunc) { return w.ctx, func() {} }

// request makes a request of a tenant use the machine, and then take some more time without it.
func (t *Tenant) request(ctx context.Context, m *machine, work, idle time.Duration) error {
	if !t.Admit() {
		return OverShare
	}
	defer t.Done()
	if !t.Enter(waiter{ctx}) { //nolint:contextcheck // Wait returns the context
		return ctx.Err()
	}
	m.use(work)
	<-time.After(idle)
	t.Exit()
	return nil
}

// TestFairness covers, in virtual time, the effect of a flood in one namespace on another one, and on itself.
func TestFairness(t *testing.T) {
	const work = 100 * time.Microsecond
	for _, test := range []struct {
		name    string
		clients int
		idle    time.Duration
		// quiet is true if the other namespace has no requests.
		quiet bool
		// slowest bounds the duration of the other's requests once the limits are adjusted, least the rate of responses to the flood per second.
		slowest time.Duration
		least   float64
	}{
		{name: "fast requests", clients: 64, slowest: 5 * work, least: 7500},
		{name: "slow requests", clients: 1000, idle: 500 * time.Millisecond, slowest: 10 * work, least: 800},
		{name: "alone", clients: 64, quiet: true, least: 9900},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, m := New(maxInFlight*requestSize), &machine{}
				f.processors = 2
				ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
				defer stop()
				var running sync.WaitGroup
				flood, other := f.Tenant("flood"), f.Tenant("other")
				running.Go(func() {
					ticker := time.NewTicker(flow.ThrottleInterval)
					defer ticker.Stop()
					for ctx.Err() == nil {
						<-ticker.C
						f.adjust(m.looked() > 100*time.Microsecond, flow.ThrottleInterval)
					}
					f.adjust(false, 0)
				})
				var mu sync.Mutex
				done := 0
				for range test.clients {
					running.Go(func() {
						for ctx.Err() == nil {
							if flood.request(ctx, m, work, test.idle) == nil {
								mu.Lock()
								done++
								mu.Unlock()
							}
						}
					})
				}
				began := time.Now()
				var took []time.Duration
				for ctx.Err() == nil && !test.quiet {
					start := time.Now()
					if err := other.request(ctx, m, work, 0); err == nil && start.Sub(began) > 2*time.Second {
						took = append(took, time.Since(start))
					}
					<-time.After(50 * time.Millisecond)
				}
				running.Wait()
				late := 0
				for _, d := range took {
					if d > test.slowest {
						late++
					}
				}
				if late*10 > len(took) {
					t.Errorf("%d of %d requests of the other namespace took longer than %v: %v", late, len(took), test.slowest, took)
				}
				if rate := float64(done) / 10; rate < test.least {
					t.Errorf("the flood got %.0f responses a second, want at least %.0f", rate, test.least)
				}
				for _, tenant := range []*Tenant{flood, other} {
					if n := tenant.forwarding.Load(); n != 0 || len(tenant.queue) > 0 || tenant.limit.Load() != unlimited {
						t.Errorf("%s still has %d forwarded and %d waiting requests, and limit %d", tenant.name, n, len(tenant.queue), tenant.limit.Load())
					}
				}
			})
		})
	}
}

// TestShareOfBudget checks that a namespace below its share is admitted when the limit is reached, and that no namespace is rejected before.
func TestShareOfBudget(t *testing.T) {
	f := New(maxInFlight * requestSize)
	f.budget = 10
	flood, other := f.Tenant("flood"), f.Tenant("other")
	for i := range 11 {
		want := i < 10
		if got := flood.Admit(); got != want {
			t.Errorf("request %d of the flood: %v, want %v", i, got, want)
		}
	}
	for i := range 6 {
		want := i < 5
		if got := other.Admit(); got != want {
			t.Errorf("request %d of the other: %v, want %v", i, got, want)
		}
	}
	for range 10 {
		flood.Done()
	}
	if !other.Admit() {
		t.Error("rejected after the flood")
	}
	f.Release(flood)
	f.Release(other)
	if len(f.tenants) != 0 {
		t.Errorf("%d tenants remain", len(f.tenants))
	}
}

// BenchmarkAdmit measures the cost of each request while no tenant is throttled.
func BenchmarkAdmit(b *testing.B) {
	t := New(maxInFlight * requestSize).Tenant("a")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if t.Admit() && t.Enter(nil) {
				t.Exit()
				t.Done()
			}
		}
	})
}

// TestRun adjusts limits while some tenant has requests, and a while longer, but not without any.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(1 << 20)
		go f.Run(t.Context())
		turns := func() int64 {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.turn
		}
		<-time.After(time.Hour)
		for range 2 {
			before := turns()
			tenant := f.Tenant("a")
			if !tenant.Admit() {
				t.Fatal("not admitted")
			}
			<-time.After(flow.ThrottleInterval*10 + flow.ThrottleInterval/2)
			if passed := turns() - before; passed != 10 {
				t.Errorf("%d turns during the request, want 10", passed)
			}
			tenant.Done()
			<-time.After(time.Hour)
			if passed := turns() - before; passed < activeTurns || passed > activeTurns+20 {
				t.Errorf("%d turns during the request and the hour after it, want %d after it", passed, activeTurns)
			}
			f.Release(tenant)
		}
	})
}
