package gateway

import (
	"context"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

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

// poolOf returns the pool of the tests' Revision.
func poolOf(g *Gateway) *pool.Pool {
	p, _ := g.pools.Get(key("r"))
	return p
}

// specOf returns a copy of the tests' Revision.
func specOf(g *Gateway) routing.Revision {
	revision, _ := poolOf(g).Revision()
	return *revision
}

// try acquires a backend if there is one.
func try(p *pool.Pool) *pool.Backend {
	r := p.Request()
	return r.Acquire(impatient{}).Backend
}

// waiting returns the number of requests that wait for the tests' Revision.
func waiting(g *Gateway) int {
	_, _, n, _ := g.Sample(key("r"), time.Now())
	return n
}

// impatient is a pool.Waiter that does not wait.
type impatient struct{}

func (impatient) Queued() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx, cancel
}

func (impatient) Describe() (string, time.Time) { return "", time.Time{} }

func routeTo(name, host string, targets ...routing.Target) *routing.Route {
	return &routing.Route{Key: key(name), Hosts: []routing.Host{{Name: host, Targets: targets}}}
}

// TestPoolsOfRoutes covers that a route's deletion removes pools that no other route refers to.
func TestPoolsOfRoutes(t *testing.T) {
	g := New(Options{})
	all := routing.Target{Revision: key("r"), Percent: 100}
	g.SetRoute(routeTo("a", "x", all))
	g.SetRoute(routeTo("b", "x", all))
	g.DeleteRoute(key("a"))
	g.SetRoute(routeTo("b", "y", all))
	if _, ok := g.pools.Get(key("r")); !ok {
		t.Error("the pool was removed with a route that another one shares")
	}
	g.DeleteRoute(key("b"))
	if _, ok := g.pools.Get(key("r")); ok {
		t.Error("the pool was not removed with its last route")
	}
}

// retried calls attempt until it returns true. An attempt returns false if a time limit expired too early because the process was paused.
func retried(t testing.TB, attempt func() bool) {
	t.Helper()
	for range 5 {
		if attempt() {
			return
		}
	}
	t.Fatal("each attempt ended too early")
}
