package gateway

import (
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

func key(name string) routing.Key { return routing.Key{Namespace: "default", Name: name} }

func routeTo(name, host string, targets ...routing.Target) *routing.Route {
	return &routing.Route{Key: key(name), Hosts: []routing.Host{{Name: host, Targets: targets}}}
}

// TestPoolsOfRoutes covers that pools which only a route refers to go with it.
func TestPoolsOfRoutes(t *testing.T) {
	g := New(Options{})
	all := routing.Target{Revision: key("r"), Percent: 100}
	g.SetRoute(routeTo("a", "x", all))
	g.SetRoute(routeTo("b", "x", all))
	g.DeleteRoute(key("a"))
	g.SetRoute(routeTo("b", "y", all))
	if len(g.pools) != 1 {
		t.Errorf("pools %v, want that of the revision", g.pools)
	}
	g.DeleteRoute(key("b"))
	if len(g.pools) != 0 {
		t.Errorf("pools are left: %v", g.pools)
	}
}
