package pool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/fairness"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// hooks records what pools report.
type hooks struct {
	mu        sync.Mutex
	activated int
	drained   []string
}

// alone is the only replica.
type alone struct{}

func (alone) Owner(routing.Key) (membership.Member, bool)     { return membership.Member{}, true }
func (alone) Shared() bool                                    { return false }
func (alone) Inquire(routing.Key, func(ownership.Round) bool) {}
func (alone) Standing() (int, bool)                           { return 0, true }

// pools returns an empty set that reports to h.
func (h *hooks) pools() *Pools {
	return New(Options{
		Activate: func(routing.Key) { h.mu.Lock(); h.activated++; h.mu.Unlock() },
		Drained: func(_ routing.Key, backend string) {
			h.mu.Lock()
			h.drained = append(h.drained, backend)
			h.mu.Unlock()
		},
		TargetBurstCapacity: func() float64 { return 211 },
		Clock:               clock.RealClock{}, Fairness: fairness.New(1 << 30), Owners: alone{},
	})
}

func newPools() *Pools { return new(hooks).pools() }

func key(name string) routing.Key { return routing.Key{Namespace: "default", Name: name} }

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

func poolOf(s *Pools) *Pool { return s.pools[key("r")] }

// waiter waits until a context ends.
type waiter struct{ ctx context.Context }

func (w waiter) Queued() (context.Context, context.CancelFunc) { return w.ctx, func() {} }

func (waiter) Describe() (string, time.Time) { return "GET r.example.com/", time.Now() }

// acquire acquires a backend for a new request.
func (p *Pool) acquire(ctx context.Context) Grant {
	r := p.Request()
	return r.Acquire(waiter{ctx}) //nolint:contextcheck // Queued returns the context
}

// at returns a request that holds a backend.
func (p *Pool) at(b *Backend) *Request {
	r := &Request{pool: p, backend: b}
	r.Begin()
	return r
}

// finish ends a request at a backend.
func (p *Pool) finish(b *Backend) { p.at(b).End(time.Now()) }

// try grants a backend if there is one and no request waits.
func (p *Pool) try() *Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.length > 0 {
		return nil
	}
	return p.choose()
}

// waiters starts requests one after the other, which note in order when they got an instance, and keep it.
func waiters(t *testing.T, p *Pool, n int, got chan<- int) (rejections *[]*serving.Rejection) {
	t.Helper()
	rejections = new([]*serving.Rejection)
	for i := range n {
		go func() {
			grant := p.acquire(t.Context())
			if grant.Outcome == Rejected {
				*rejections = append(*rejections, grant.Rejection)
			}
			if grant.Outcome == Granted {
				got <- i
			}
		}()
		synctest.Wait()
	}
	return rejections
}

// TestLeastLoaded covers which instance gets a request: the one with the fewest, each in turn where they are equal,
// and none beyond containerConcurrency.
func TestLeastLoaded(t *testing.T) {
	s := newPools()
	s.SetRevision(revision(2))
	s.SetBackends(key("r"), ready("a", "b", "c"))
	p := poolOf(s)
	counts := map[string]int{}
	var held []*Backend
	for i := range 6 {
		b := p.try()
		held = append(held, b)
		counts[b.name]++
		if want := i/3 + 1; counts[b.name] != want {
			t.Errorf("request %d is number %d at %s, want %d", i, counts[b.name], b.name, want)
		}
	}
	if b := p.try(); b != nil {
		t.Errorf("a seventh request is sent to %s, want none", b.name)
	}
	p.finish(held[4])
	if b := p.try(); b != held[4] {
		t.Errorf("a request is sent to %v, want the instance that is free", b)
	}
}

// TestFewerInstances covers that the turn of an instance which has gone is another one's.
func TestFewerInstances(t *testing.T) {
	s := newPools()
	s.SetRevision(revision(0))
	s.SetBackends(key("r"), ready("a", "b", "c", "d", "e"))
	p := poolOf(s)
	for range 4 {
		p.try()
	}
	s.SetBackends(key("r"), ready("a", "b"))
	for _, want := range []string{"a", "b"} {
		if b := p.try(); b == nil || b.name != want {
			t.Errorf("of two instances left %v got the request, want %s", b, want)
		}
	}
}

// TestColdStart covers that requests are held until an instance is ready, in order, and that one is asked for
// (serving 8-7); 500 at once do not overflow when the first instance is ready.
func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{}
		s := h.pools()
		s.SetRevision(revision(1))
		p := poolOf(s)
		got := make(chan int, 501)
		waiters(t, p, 500, got)
		if h.activated == 0 {
			t.Error("nothing was activated")
		}
		if _, _, waiting, ok := s.Sample(key("r"), time.Now()); waiting != 500 || !ok {
			t.Errorf("%d wait, want 500", waiting)
		}
		s.SetBackends(key("r"), ready("a"))
		rejections := waiters(t, p, 1, got)
		if len(*rejections) != 0 {
			t.Errorf("the request after the cold start is rejected: %v", (*rejections)[0])
		}
		b := p.backends.all["a"]
		for want := range 500 {
			if i := <-got; i != want {
				t.Fatalf("request %d comes as number %d", i, want)
			}
			if b.inFlight != 1 {
				t.Fatalf("%d requests at an instance with containerConcurrency 1", b.inFlight)
			}
			p.finish(b)
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
				s := newPools()
				s.options.TargetBurstCapacity = func() float64 { return test.operator }
				spec := revision(test.concurrency)
				spec.Autoscaling.BurstCapacity = test.burst
				s.SetRevision(spec)
				s.SetBackends(key("r"), test.instances)
				p := poolOf(s)
				for p.try() != nil {
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				for range test.want {
					go func() {
						if grant := p.acquire(ctx); grant.Outcome == Rejected {
							t.Errorf("rejected below the bound: %v", grant.Rejection)
						}
					}()
				}
				synctest.Wait()
				if grant := p.acquire(ctx); grant.Rejection != queueFull {
					t.Errorf("rejection %v above the bound, want %v", grant.Rejection, queueFull)
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
		s := newPools()
		spec := revision(1)
		spec.Autoscaling.BurstCapacity = ptr.To(2.0)
		s.SetRevision(spec)
		s.SetBackends(key("r"), ready("a"))
		p := poolOf(s)
		held := []*Backend{p.try()}
		got := make(chan int, 100)
		wait := func(n int) []*serving.Rejection { return *waiters(t, p, n, got) }
		if rejections := wait(50); len(rejections) != 0 {
			t.Fatalf("rejected below the target burst capacity: %v", rejections[0])
		}
		// Two of the fifty are forwarded.
		s.SetBackends(key("r"), ready("a", "b", "c"))
		if rejections := wait(10); len(rejections) != 0 || p.queue.length != 58 {
			t.Fatalf("rejections %v, %d wait, want 58 of them", rejections, p.queue.length)
		}
		for p.queue.length > 30 {
			p.finish(held[0])
		}
		if rejections := wait(1); len(rejections) != 1 || rejections[0] != queueFull {
			t.Errorf("rejections %v with 30 that wait for three, want %v", rejections, queueFull)
		}
		for p.queue.length > 0 {
			p.finish(held[0])
		}
	})
}

// TestWaitEnds covers that a request leaves the queue when its time is up or its client closes the connection, and passes a slot
// on that it got too late.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPools()
		s.SetRevision(revision(1))
		p := poolOf(s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if grant := p.acquire(ctx); grant.Rejection != serving.TimedOut {
			t.Errorf("rejection %v, want %v", grant.Rejection, serving.TimedOut)
		}
		gone, closed := context.WithCancelCause(t.Context())
		closed(errors.New("client gone"))
		if grant := p.acquire(gone); grant.Outcome != Canceled || grant.Backend != nil {
			t.Errorf("got %+v, want neither a backend nor a rejection", grant)
		}
		if p.queue.length != 0 {
			t.Errorf("%d are left in the queue", p.queue.length)
		}
		w := newWaiting()
		p.mu.Lock()
		p.queue.push(w, false)
		p.mu.Unlock()
		s.SetBackends(key("r"), ready("a"))
		late, end := context.WithCancel(t.Context())
		end()
		if grant := p.wait(late, w); grant.Outcome != Granted && p.backends.all["a"].inFlight != 0 {
			t.Errorf("%d slots are lost", p.backends.all["a"].inFlight)
		}
	})
}

// TestDraining covers that a draining instance gets no requests, and that it is reported once it has none left.
func TestDraining(t *testing.T) {
	h := &hooks{}
	s := h.pools()
	s.SetRevision(revision(0))
	s.SetBackends(key("r"), ready("a", "b"))
	p := poolOf(s)
	first, second := p.try(), p.try()
	draining := ready("a", "b", "c")
	draining[0].Draining, draining[2].Draining = true, true
	s.SetBackends(key("r"), draining)
	s.SetBackends(key("r"), draining)
	if fmt.Sprint(h.drained) != "[c]" {
		t.Errorf("drained %v, want c, which never had a request", h.drained)
	}
	for range 10 {
		if b := p.try(); b.name != "b" {
			t.Errorf("a request is sent to %s", b.name)
		}
	}
	for _, b := range []*Backend{first, second} {
		p.finish(b)
	}
	if fmt.Sprint(h.drained) != "[c a]" {
		t.Errorf("drained %v, want [c a]", h.drained)
	}
	s.SetBackends(key("r"), nil)
	p.finish(p.backends.all["b"])
	if fmt.Sprint(h.drained) != "[c a]" {
		t.Errorf("drained %v after the last instance is gone", h.drained)
	}
}

// TestUnreachable covers that an instance that took no connection is avoided for a while, and that requests wait
// without another one.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{}
		s := h.pools()
		s.SetRevision(revision(0))
		s.SetBackends(key("r"), ready("a", "b"))
		p := poolOf(s)
		p.at(p.try()).Unreachable()
		for range 4 {
			if b := p.try(); b.name != "b" {
				t.Errorf("a request is sent to %s", b.name)
			}
		}
		refused := p.at(p.backends.all["b"])
		refused.Unreachable()
		if b := p.try(); b != nil {
			t.Errorf("a request is sent to %s, want it to wait", b.name)
		}
		began := time.Now()
		grant := refused.Acquire(waiter{t.Context()})
		if grant.Outcome != Granted || grant.Backend == nil || time.Since(began) != firstAvoid {
			t.Errorf("got %+v after %v, want a backend after %v", grant, time.Since(began), firstAvoid)
		}
		if h.activated != 1 {
			t.Errorf("activated %d times, want once", h.activated)
		}
	})
}

// TestDeletedRevision covers that requests to a revision that is gone, with the routes to it, do not wait for ever.
func TestDeletedRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPools()
		s.SetRevision(revision(0))
		p := s.Retain(key("r"))
		rejections := waiters(t, p, 1, make(chan int, 1))
		s.DeleteRevision(key("r"))
		synctest.Wait()
		if len(*rejections) != 0 {
			t.Fatalf("rejected while a route refers to the revision: %v", *rejections)
		}
		s.Release(p)
		synctest.Wait()
		if len(*rejections) != 1 || (*rejections)[0] != revisionGone {
			t.Errorf("rejections %v, want %v", *rejections, revisionGone)
		}
		if _, _, _, ok := s.Sample(key("r"), time.Now()); ok {
			t.Error("the revision is still known")
		}
	})
}

// TestSample covers that concurrency is an average over time.
func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPools()
		s.SetRevision(revision(0))
		p := poolOf(s)
		r := p.at(nil)
		p.at(nil)
		<-time.After(time.Second)
		r.End(time.Now())
		<-time.After(3 * time.Second)
		concurrency, rps, _, _ := s.Sample(key("r"), time.Now())
		if concurrency != 1.25 || rps != 0.5 {
			t.Errorf("concurrency %v, rps %v, want 1.25, 0.5", concurrency, rps)
		}
		<-time.After(time.Second)
		concurrency, rps, _, _ = s.Sample(key("r"), time.Now())
		if concurrency != 1 || rps != 0 {
			t.Errorf("concurrency %v, rps %v, want 1, 0", concurrency, rps)
		}
	})
}

// TestReturnedBackend covers that a backend which was away for a moment still has its requests.
func TestReturnedBackend(t *testing.T) {
	s := newPools()
	s.SetRevision(revision(1))
	s.SetBackends(key("r"), ready("a"))
	p := poolOf(s)
	b := p.try()
	s.SetBackends(key("r"), nil)
	s.SetBackends(key("r"), ready("a"))
	if p.try() != nil {
		t.Error("the backend gets more than it may have")
	}
	p.finish(b)
	if p.try() != b {
		t.Error("the backend gets nothing after its request has ended")
	}
}

// TestReport covers that reports have revisions with requests, over the interval, and no others.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPools()
		spec := revision(0)
		spec.UID = "u"
		s.SetRevision(spec)
		for i := range 3 {
			s.SetRevision(&routing.Revision{Key: key(fmt.Sprint("idle-", i))})
		}
		check := func(want ...Usage) {
			t.Helper()
			if diff := cmp.Diff(want, s.Report(time.Now())); diff != "" {
				t.Error(diff)
			}
		}
		check()
		<-time.After(time.Hour)
		check()
		<-time.After(500 * time.Millisecond)
		p := poolOf(s)
		r := p.at(nil)
		<-time.After(500 * time.Millisecond)
		check(Usage{Key: spec.Key, UID: "u", Concurrency: 0.5, RequestsPerSecond: 1})
		<-time.After(time.Second)
		check(Usage{Key: spec.Key, UID: "u", Concurrency: 1})
		r.End(time.Now())
		<-time.After(time.Second)
		check()
		if len(s.reports.pools) != 0 {
			t.Errorf("%d revisions without requests are looked at", len(s.reports.pools))
		}
		p.at(nil)
		s.DeleteRevision(spec.Key)
		check()
	})
}

// awaitDrained returns once a backend has drained.
func (p *Pool) awaitDrained(backend string) {
	for drained, _, changed := p.Drained(backend); !drained; drained, _, changed = p.Drained(backend) {
		<-changed
	}
}

// TestLongLivedRequests covers when a request does not delay the end of its backend any more: at once where its response
// has no end by nature, after some time if it takes long.
func TestLongLivedRequests(t *testing.T) {
	for name, test := range map[string]struct {
		at   []bool
		gone bool
		want time.Duration
	}{
		"upgraded":              {at: []bool{true}},
		"long response":         {at: []bool{false}, want: longLivedAfter},
		"both":                  {at: []bool{true, false}, want: longLivedAfter},
		"upgraded, gone":        {at: []bool{true}, gone: true},
		"both, backend is gone": {at: []bool{true, false}, gone: true, want: longLivedAfter},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hooks{}
				s := h.pools()
				s.SetRevision(revision(0))
				s.SetBackends(key("r"), ready("a"))
				p := poolOf(s)
				var streams []*Request
				b := p.backends.all["a"]
				for _, now := range test.at {
					r := p.at(p.try())
					r.Streaming(now)
					streams = append(streams, r)
				}
				began := time.Now()
				if test.gone {
					s.SetBackends(key("r"), nil)
				} else {
					draining := ready("a")
					draining[0].Draining = true
					s.SetBackends(key("r"), draining)
				}
				if p.awaitDrained("a"); time.Since(began) != test.want {
					t.Errorf("drained after %v, want %v", time.Since(began), test.want)
				}
				synctest.Wait()
				if reported := len(h.drained) == 1; reported == test.gone {
					t.Errorf("drained %v", h.drained)
				}
				for _, r := range streams {
					r.End(time.Now())
				}
				<-time.After(time.Minute)
				if b.inFlight != 0 || b.longLived != 0 || len(p.backends.gone) > 0 || len(h.drained) > 1 {
					t.Errorf("in the end %+v, gone %v, drained %v", b, p.backends.gone, h.drained)
				}
			})
		})
	}
}

func BenchmarkPool(b *testing.B) {
	s := newPools()
	s.SetRevision(revision(10))
	s.SetBackends(key("r"), ready("a", "b", "c", "d"))
	p := poolOf(s)
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		r := p.Request()
		r.Begin()
		r.Acquire(waiter{})
		r.End(now)
	}
}
