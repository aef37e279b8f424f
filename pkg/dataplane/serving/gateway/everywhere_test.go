package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// moved is a route like the one that all gateways of a test have, with another host besides.
func moved() *routing.Route {
	route := routeTo("app", "app", routing.Target{Revision: routing.Key{Namespace: "default", Name: "r"}, Percent: 100})
	route.Hosts = append(route.Hosts, routing.Host{Name: "other", Targets: route.Hosts[0].Targets, Tags: map[string]routing.Key{
		"a": {Namespace: "default", Name: "r"}, "b": {Namespace: "default", Name: "s"},
	}})
	return route
}

// until waits for what a call of ServedEverywhere is to have called.
func until(t *testing.T, called <-chan struct{}) {
	t.Helper()
	select {
	case <-called:
	case <-time.After(2 * routedPatience):
		t.Fatal("it was not called")
	}
}

// TestServedEverywhere covers that a route counts as served once all replicas serve it as it is (serving 8-1).
func TestServedEverywhere(t *testing.T) {
	names := []string{"a", "b", "c"}
	all := serveReplicas(t, revision(0), nil, nil, names, names...)
	key := moved().Key
	called := make(chan struct{}, 1)
	served := func() bool { return all["a"].ServedByAll(key, func() { called <- struct{}{} }) }
	if !served() {
		until(t, called)
	}
	if !served() {
		t.Error("what all have from the beginning is not served everywhere")
	}
	all["a"].SetRoute(moved())
	for range 2 {
		if served() {
			t.Error("what no other has is served everywhere")
		}
	}
	all["b"].SetRoute(moved())
	select {
	case <-called:
		t.Error("one of two is enough")
	case <-time.After(5 * askRetry):
	}
	all["c"].DeleteRoute(key)
	all["c"].SetRoute(moved())
	until(t, called)
	if !served() {
		t.Error("what all have is not served everywhere")
	}
	if all["c"].SetRoute(routeTo("app", "app")); !served() {
		t.Error("what others have later matters")
	}
	if !all["a"].ServedByAll(routing.Key{Name: "unknown"}, nil) {
		t.Error("an unknown route is waited for")
	}
	for name, r := range all {
		if len(r.changes) > 0 {
			t.Errorf("%s keeps in mind who waits for %v", name, r.changes)
		}
	}
}

// Who waits for a form that is replaced meanwhile need not wait for it to come.
func TestServedEverywhereSuperseded(t *testing.T) {
	names := []string{"a", "b"}
	all := serveReplicas(t, revision(0), nil, nil, names, names...)
	all["a"].SetRoute(moved())
	called := make(chan struct{}, 1)
	then := func() { called <- struct{}{} }
	if all["a"].ServedByAll(moved().Key, then) {
		t.Fatal("it is served everywhere")
	}
	began := time.Now()
	all["a"].SetRoute(routeTo("app", "app"))
	until(t, called)
	if took := time.Since(began); took > routedPatience/2 {
		t.Errorf("that took %s", took)
	}
	if all["a"].ServedByAll(moved().Key, then) {
		t.Error("the new form is served everywhere without having been asked for")
	}
	all["b"].SetRoute(routeTo("app", "app"))
	until(t, called)
}

// Replicas that are gone, or do not get on, are not waited for.
func TestServedEverywhereWithout(t *testing.T) {
	for name, lose := range map[string]func(all map[string]*replica){
		"nobody at its address": func(all map[string]*replica) {
			all["b"].peer.Listener.Close()
			all["b"].peer.CloseClientConnections()
		},
		"gone": func(all map[string]*replica) {
			all["a"].view.Set(setOf(all, "a", "a"))
			all["b"].peer.CloseClientConnections()
		},
		"behind for long": func(map[string]*replica) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := serveReplicas(t, revision(0), nil, nil, []string{"a", "b"}, "a", "b")
			all["a"].SetRoute(moved())
			called := make(chan struct{}, 1)
			then := func() { called <- struct{}{} }
			if all["a"].ServedByAll(moved().Key, then) {
				t.Error("another one that does not have it is not waited for")
			}
			lose(all)
			until(t, called)
			if !all["a"].ServedByAll(moved().Key, then) {
				t.Error("it is waited for")
			}
		})
	}
}

// A server without others has no one to ask.
func TestServedEverywhereAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Options{Members: membership.Alone()})
		g.SetRoute(moved())
		if !g.ServedByAll(moved().Key, nil) {
			t.Error("others are waited for")
		}
	})
}
