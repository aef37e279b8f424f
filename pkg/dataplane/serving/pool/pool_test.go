package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// hooks records what a gateway tells its owner.
type hooks struct {
	mu        sync.Mutex
	activated int
	drained   []string
}

func (h *hooks) options() Options {
	return Options{
		Activate: func(routing.Key) { h.mu.Lock(); h.activated++; h.mu.Unlock() },
		Drained: func(_ routing.Key, instance string) {
			h.mu.Lock()
			h.drained = append(h.drained, instance)
			h.mu.Unlock()
		},
	}
}

func revision(concurrency int) *routing.Revision {
	return &routing.Revision{Key: key("r"), ContainerConcurrency: concurrency, Timeout: time.Minute}
}

func ready(names ...string) []workload.Instance {
	var instances []workload.Instance
	for _, name := range names {
		instances = append(instances, workload.Instance{Name: name, Address: name + ":1"})
	}
	return instances
}

func poolOf(g *Gateway) *pool { return g.pools[key("r")] }

// waiters starts requests one after the other, which note in order when they got an instance, and keep it.
func waiters(t *testing.T, p *pool, n int, got chan<- int) (refusals *[]*http1.Refusal) {
	t.Helper()
	refusals = new([]*http1.Refusal)
	for i := range n {
		go func() {
			inst, _, refusal := p.acquire(t.Context(), false)
			if refusal != nil {
				*refusals = append(*refusals, refusal)
			}
			if inst != nil {
				got <- i
			}
		}()
		synctest.Wait()
	}
	return refusals
}

// TestLeastLoaded covers which instance gets a request: the one with the fewest, each in turn where they are equal,
// and none beyond containerConcurrency.
func TestLeastLoaded(t *testing.T) {
	g := New(Options{})
	g.SetRevision(revision(2))
	g.SetInstances(key("r"), ready("a", "b", "c"))
	p := poolOf(g)
	counts := map[string]int{}
	var held []*instance
	for i := range 6 {
		inst := p.tryAcquire()
		held = append(held, inst)
		counts[inst.name]++
		if want := i/3 + 1; counts[inst.name] != want {
			t.Errorf("request %d is number %d at %s, want %d", i, counts[inst.name], inst.name, want)
		}
	}
	if inst := p.tryAcquire(); inst != nil {
		t.Errorf("a seventh request goes to %s, want none", inst.name)
	}
	p.begin(time.Now())
	p.end(held[4], nil, time.Now())
	if inst := p.tryAcquire(); inst != held[4] {
		t.Errorf("a request goes to %v, want the instance that is free", inst)
	}
}

// TestFewerInstances covers that the turn of an instance which has gone is another one's.
func TestFewerInstances(t *testing.T) {
	g := New(Options{})
	g.SetRevision(revision(0))
	g.SetInstances(key("r"), ready("a", "b", "c", "d", "e"))
	p := poolOf(g)
	for range 4 {
		p.tryAcquire()
	}
	g.SetInstances(key("r"), ready("a", "b"))
	for _, want := range []string{"a", "b"} {
		if inst := p.tryAcquire(); inst == nil || inst.name != want {
			t.Errorf("of two instances left %v got the request, want %s", inst, want)
		}
	}
}

// TestColdStart covers that requests are held until an instance is ready, in order, and that one is asked for
// (serving 8-7); 500 at once do not overflow when the first instance is ready.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{}
		g := New(h.options())
		g.SetRevision(revision(1))
		p := poolOf(g)
		got := make(chan int, 501)
		waiters(t, p, 500, got)
		if h.activated == 0 {
			t.Error("nothing was activated")
		}
		if _, _, waiting, ok := g.Sample(key("r"), time.Now()); waiting != 500 || !ok {
			t.Errorf("%d wait, want 500", waiting)
		}
		g.SetInstances(key("r"), ready("a"))
		refusals := waiters(t, p, 1, got)
		if len(*refusals) != 0 {
			t.Errorf("the request after the cold start is refused: %v", (*refusals)[0])
		}
		inst := p.all["a"]
		for want := range 500 {
			if i := <-got; i != want {
				t.Fatalf("request %d comes as number %d", i, want)
			}
			if inst.inFlight != 1 {
				t.Fatalf("%d requests at an instance with containerConcurrency 1", inst.inFlight)
			}
			p.begin(time.Now())
			p.end(inst, nil, time.Now())
		}
	})
}

// TestQueueBounds covers how many requests wait: 10,000 while the ready capacity is below the target burst capacity, and
// 10 for each unit of capacity beyond it (serving 8-7).
func TestQueueBounds(t *testing.T) {
	for _, test := range []struct {
		name  string
		burst *float64
		// operator is the target burst capacity of config-autoscaler.
		operator    float64
		concurrency int
		instances   []workload.Instance
		want        int
	}{
		{name: "cold", burst: ptr.To(0.0), concurrency: 2, want: 10_000},
		{name: "below the default", operator: 211, concurrency: 2, instances: ready("a"), want: 10_000},
		{name: "just below the default", operator: 211, concurrency: 105, instances: ready("a", "b"), want: 10_000},
		{name: "the default", operator: 212, concurrency: 106, instances: ready("a", "b"), want: 2120},
		{name: "none by default", operator: 0, concurrency: 2, instances: ready("a"), want: 20},
		{name: "any by default", operator: -1, concurrency: 2, instances: ready("a"), want: 10_000},
		{name: "none", burst: ptr.To(0.0), operator: 211, concurrency: 2, instances: ready("a", "b"), want: 40},
		{name: "below", burst: ptr.To(4.5), concurrency: 2, instances: ready("a", "b"), want: 10_000},
		{name: "beyond", burst: ptr.To(4.0), operator: 211, concurrency: 2, instances: ready("a", "b"), want: 40},
		{name: "any", burst: ptr.To(-1.0), concurrency: 2, instances: ready("a"), want: 10_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New(Options{TargetBurstCapacity: func() float64 { return test.operator }})
				spec := revision(test.concurrency)
				spec.Autoscaling.BurstCapacity = test.burst
				g.SetRevision(spec)
				g.SetInstances(key("r"), test.instances)
				p := poolOf(g)
				for p.tryAcquire() != nil {
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for range test.want {
					go func() {
						if _, _, refusal := p.acquire(ctx, false); refusal != nil {
							t.Errorf("refused below the bound: %v", refusal)
						}
					}()
				}
				synctest.Wait()
				if _, _, refusal := p.acquire(ctx, false); refusal != queueFull {
					t.Errorf("refusal %v above the bound, want %v", refusal, queueFull)
				}
				cancel()
				synctest.Wait()
				if p.queue.length != 0 {
					t.Errorf("%d are left in the queue", p.queue.length)
				}
			})
		})
	}
}

// TestQueueKeepsLargeLimit covers that requests which wait are no reason to refuse the next one when the capacity gets
// beyond the target burst capacity, until the queue is short.
func TestQueueKeepsLargeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		spec := revision(1)
		spec.Autoscaling.BurstCapacity = ptr.To(2.0)
		g.SetRevision(spec)
		g.SetInstances(key("r"), ready("a"))
		p := poolOf(g)
		held := []*instance{p.tryAcquire()}
		got := make(chan int, 100)
		wait := func(n int) []*http1.Refusal { return *waiters(t, p, n, got) }
		if refusals := wait(50); len(refusals) != 0 {
			t.Fatalf("refused below the target burst capacity: %v", refusals[0])
		}
		// Two of the fifty are forwarded.
		g.SetInstances(key("r"), ready("a", "b", "c"))
		if refusals := wait(10); len(refusals) != 0 || p.queue.length != 58 {
			t.Fatalf("refusals %v, %d wait, want 58 of them", refusals, p.queue.length)
		}
		for p.queue.length > 30 {
			p.begin(time.Now())
			p.end(held[0], nil, time.Now())
		}
		if refusals := wait(1); len(refusals) != 1 || refusals[0] != queueFull {
			t.Errorf("refusals %v with 30 that wait for three, want %v", refusals, queueFull)
		}
		for p.queue.length > 0 {
			p.begin(time.Now())
			p.end(held[0], nil, time.Now())
		}
	})
}

// TestWaitEnds covers that a request leaves the queue when its time is up or its client goes away, and passes a slot
// on that it got too late.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		g.SetRevision(revision(1))
		p := poolOf(g)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, refusal := p.acquire(ctx, false); refusal != tooLate {
			t.Errorf("refusal %v, want %v", refusal, tooLate)
		}
		gone, leave := context.WithCancelCause(t.Context())
		leave(errors.New("client gone"))
		if inst, _, refusal := p.acquire(gone, false); inst != nil || refusal != nil {
			t.Errorf("got %v, %v, want neither", inst, refusal)
		}
		if p.queue.length != 0 {
			t.Errorf("%d are left in the queue", p.queue.length)
		}
		w := &waiter{granted: make(chan *instance, 1)}
		p.mu.Lock()
		p.queue.push(w, false)
		p.mu.Unlock()
		g.SetInstances(key("r"), ready("a"))
		late, end := context.WithCancel(t.Context())
		end()
		if inst, _ := p.wait(late, w); inst == nil && p.all["a"].inFlight != 0 {
			t.Errorf("%d slots are lost", p.all["a"].inFlight)
		}
	})
}

// TestDraining covers that a draining instance gets no requests, and that it is told once that it has none left.
func TestDraining(t *testing.T) {
	h := &hooks{}
	g := New(h.options())
	g.SetRevision(revision(0))
	g.SetInstances(key("r"), ready("a", "b"))
	p := poolOf(g)
	first, second := p.tryAcquire(), p.tryAcquire()
	draining := ready("a", "b", "c")
	draining[0].Draining, draining[2].Draining = true, true
	g.SetInstances(key("r"), draining)
	g.SetInstances(key("r"), draining)
	if fmt.Sprint(h.drained) != "[c]" {
		t.Errorf("drained %v, want c, which never had a request", h.drained)
	}
	for range 10 {
		if inst := p.tryAcquire(); inst.name != "b" {
			t.Errorf("a request goes to %s", inst.name)
		}
	}
	for _, inst := range []*instance{first, second} {
		p.begin(time.Now())
		p.end(inst, nil, time.Now())
	}
	if fmt.Sprint(h.drained) != "[c a]" {
		t.Errorf("drained %v, want [c a]", h.drained)
	}
	g.SetInstances(key("r"), nil)
	p.begin(time.Now())
	p.end(p.all["b"], nil, time.Now())
	if fmt.Sprint(h.drained) != "[c a]" {
		t.Errorf("drained %v after the last instance is gone", h.drained)
	}
}

// TestUnreachable covers that an instance that took no connection is avoided for a while, and that requests wait
// where there is no other.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{}
		g := New(h.options())
		g.SetRevision(revision(0))
		g.SetInstances(key("r"), ready("a", "b"))
		p := poolOf(g)
		p.unreachable(p.tryAcquire())
		for range 4 {
			if inst := p.tryAcquire(); inst.name != "b" {
				t.Errorf("a request goes to %s", inst.name)
			}
		}
		p.unreachable(p.all["b"])
		if inst := p.tryAcquire(); inst != nil {
			t.Errorf("a request goes to %s, want it to wait", inst.name)
		}
		began := time.Now()
		inst, _, refusal := p.acquire(t.Context(), true)
		if inst == nil || refusal != nil || time.Since(began) != firstAvoid {
			t.Errorf("got %v, %v after %v, want an instance after %v", inst, refusal, time.Since(began), firstAvoid)
		}
		if h.activated != 1 {
			t.Errorf("activated %d times, want once", h.activated)
		}
	})
}

// TestDeletedRevision covers that requests to a revision that is gone, with the routes to it, do not wait for ever.
func TestDeletedRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		g.SetRevision(revision(0))
		g.SetRoute(routeTo("x", "x", routing.Target{Revision: key("r"), Percent: 100}))
		refusals := waiters(t, poolOf(g), 1, make(chan int, 1))
		g.DeleteRevision(key("r"))
		synctest.Wait()
		if len(*refusals) != 0 {
			t.Fatalf("refused while a route refers to the revision: %v", *refusals)
		}
		g.DeleteRoute(key("x"))
		synctest.Wait()
		if len(*refusals) != 1 || (*refusals)[0] != noLonger {
			t.Errorf("refusals %v, want %v", *refusals, noLonger)
		}
		if _, _, _, ok := g.Sample(key("r"), time.Now()); ok {
			t.Error("the revision is still known")
		}
	})
}

// TestSample covers that concurrency is an average over time.
func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{})
		g.SetRevision(revision(0))
		p := poolOf(g)
		p.begin(time.Now())
		p.begin(time.Now())
		<-time.After(time.Second)
		p.end(nil, nil, time.Now())
		<-time.After(3 * time.Second)
		concurrency, rps, _, _ := g.Sample(key("r"), time.Now())
		if concurrency != 1.25 || rps != 0.5 {
			t.Errorf("concurrency %v, rps %v, want 1.25, 0.5", concurrency, rps)
		}
		<-time.After(time.Second)
		concurrency, rps, _, _ = g.Sample(key("r"), time.Now())
		if concurrency != 1 || rps != 0 {
			t.Errorf("concurrency %v, rps %v, want 1, 0", concurrency, rps)
		}
	})
}

func BenchmarkPool(b *testing.B) {
	g := New(Options{})
	g.SetRevision(revision(10))
	g.SetInstances(key("r"), ready("a", "b", "c", "d"))
	p := poolOf(g)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		p.begin(now)
		p.end(p.tryAcquire(), nil, now)
	}
}
