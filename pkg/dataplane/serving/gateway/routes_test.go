package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// moved returns the route that all gateways of a test have, with an additional host.
func moved() *routing.Route {
	route := routeTo("app", "app", routing.Target{Revision: routing.Key{Namespace: "default", Name: "r"}, Percent: 100})
	route.Hosts = append(route.Hosts, routing.Host{Name: "other", Targets: route.Hosts[0].Targets, Tags: map[string]routing.Key{
		"a": {Namespace: "default", Name: "r"}, "b": {Namespace: "default", Name: "s"},
	}})
	return route
}

// until waits for the callback of ServedByAll.
func until(t *testing.T, called <-chan struct{}) {
	t.Helper()
	select {
	case <-called:
	case <-time.After(2 * routedTimeout):
		t.Fatal("the callback was not called")
	}
}

// TestServedByAll checks that a route counts as served once all replicas serve its current form (serving 8-1).
func TestServedByAll(t *testing.T) {
	names := []string{"a", "b", "c"}
	all := serveReplicas(t, revision(0), nil, nil, names, names...)
	key := moved().Key
	called := make(chan struct{}, 1)
	served := func() bool { return all["a"].ServedByAll(key, func() { called <- struct{}{} }) }
	if !served() {
		until(t, called)
	}
	if !served() {
		t.Error("a route that all replicas serve from the beginning is not served by all")
	}
	all["a"].SetRoute(moved())
	for range 2 {
		if served() {
			t.Error("a route that no other replica has is served by all")
		}
	}
	all["b"].SetRoute(moved())
	select {
	case <-called:
		t.Error("one of two other replicas is enough")
	case <-time.After(5 * queryInterval):
	}
	all["c"].DeleteRoute(key)
	all["c"].SetRoute(moved())
	until(t, called)
	if !served() {
		t.Error("a route that all replicas have is not served by all")
	}
	if all["c"].SetRoute(routeTo("app", "app")); !served() {
		t.Error("a later change on another replica matters")
	}
	if !all["a"].ServedByAll(routing.Key{Name: "unknown"}, nil) {
		t.Error("an unknown route is not served by all")
	}
	for name, r := range all {
		if len(r.changes) > 0 {
			t.Errorf("%s still has the awaited changes %v", name, r.changes)
		}
	}
}

// TestServedByAllSuperseded checks that the callback is called at once when the route is replaced.
func TestServedByAllSuperseded(t *testing.T) {
	names := []string{"a", "b"}
	all := serveReplicas(t, revision(0), nil, nil, names, names...)
	all["a"].SetRoute(moved())
	called := make(chan struct{}, 1)
	then := func() { called <- struct{}{} }
	if all["a"].ServedByAll(moved().Key, then) {
		t.Fatal("the route is served by all")
	}
	began := time.Now()
	all["a"].SetRoute(routeTo("app", "app"))
	until(t, called)
	if took := time.Since(began); took > routedTimeout*9/10 {
		t.Errorf("the callback came after %s", took)
	}
	if all["a"].ServedByAll(moved().Key, then) {
		t.Error("the new form is served by all without a query")
	}
	all["b"].SetRoute(routeTo("app", "app"))
	until(t, called)
}

// TestServedByAllWithout checks that ServedByAll does not wait for removed, unreachable or slow replicas.
func TestServedByAllWithout(t *testing.T) {
	for name, lose := range map[string]func(all map[string]*replica){
		"connection refused": func(all map[string]*replica) {
			all["b"].peer.Listener.Close()
			all["b"].peer.CloseClientConnections()
		},
		"removed": func(all map[string]*replica) {
			all["a"].view.Set(setOf(all, "a", "a"))
			all["b"].peer.CloseClientConnections()
		},
		"slow": func(map[string]*replica) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := serveReplicas(t, revision(0), nil, nil, []string{"a", "b"}, "a", "b")
			all["a"].SetRoute(moved())
			called := make(chan struct{}, 1)
			then := func() { called <- struct{}{} }
			if all["a"].ServedByAll(moved().Key, then) {
				t.Error("another replica without the route is not waited for")
			}
			lose(all)
			until(t, called)
			if !all["a"].ServedByAll(moved().Key, then) {
				t.Error("the other replica is waited for")
			}
		})
	}
}

// TestServedByAllAlone checks that a single replica does not wait.
func TestServedByAllAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Members: membership.Alone()})
		g.SetRoute(moved())
		if !g.ServedByAll(moved().Key, nil) {
			t.Error("a single replica waits for others")
		}
	})
}
