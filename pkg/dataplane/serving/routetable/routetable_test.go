package gateway

import (
	"fmt"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

func key(name string) routing.Key { return routing.Key{Namespace: "default", Name: name} }

func routeTo(name, host string, targets ...routing.Target) *routing.Route {
	return &routing.Route{Key: key(name), Hosts: []routing.Host{{Name: host, Targets: targets}}}
}

// TestLookup covers that requests are dispatched by their Host (serving 8-6), however it is spelled.
func TestLookup(t *testing.T) {
	g := New(Options{})
	g.SetRoute(routeTo("a", "a.default.localhost", routing.Target{Revision: key("a-1"), Percent: 100}))
	for name, found := range map[string]bool{
		"a.default.localhost":       true,
		"A.Default.LOCALHOST":       true,
		"a.default.localhost:8080":  true,
		"a.default.localhost.":      true,
		"a.default.localhost.:8080": true,
		"b.default.localhost":       false,
		"a.default.localhost..":     false,
		"":                          false,
		":8080":                     false,
		"[::1]:80":                  false,
		"[::1]":                     false,
		fmt.Sprintf("%0300d", 1):    false,
	} {
		if h := lookup(g.table.Load(), name); (h != nil) != found {
			t.Errorf("lookup(%q) = %v, want found %v", name, h, found)
		}
		if h := lookup(g.table.Load(), []byte(name)); (h != nil) != found {
			t.Errorf("lookup([]byte(%q)) = %v, want found %v", name, h, found)
		}
	}
	if n := testing.AllocsPerRun(100, func() { lookup(g.table.Load(), "a.default.localhost:8080") }); n != 0 {
		t.Errorf("lookup allocates %v times", n)
	}
}

// TestReplace covers that a host belongs to the Route that got it last (serving 8-3), and that a table which was
// read before a change stays as it is.
func TestReplace(t *testing.T) {
	g := New(Options{})
	all := routing.Target{Revision: key("r"), Percent: 100}
	g.SetRoute(routeTo("a", "x", all))
	before := g.table.Load()
	g.SetRoute(routeTo("b", "x", all))
	g.DeleteRoute(key("a"))
	if h := lookup(g.table.Load(), "x"); h == nil || h.route != key("b") {
		t.Errorf("host x is %v, want that of route b", h)
	}
	if h := lookup(before, "x"); h == nil || h.route != key("a") {
		t.Errorf("host x of the table before is %v, want that of route a", h)
	}
	g.SetRoute(routeTo("b", "y", all))
	if lookup(g.table.Load(), "x") != nil || lookup(g.table.Load(), "y") == nil {
		t.Error("route b has not moved from x to y")
	}
	g.DeleteRoute(key("b"))
	if len(g.pools) != 0 {
		t.Errorf("pools are left: %v", g.pools)
	}
}

func BenchmarkSetRoute10000(b *testing.B) {
	g := New(Options{})
	route := func(i int) *routing.Route {
		name := fmt.Sprintf("service-%d", i%10_000)
		return routeTo(name, name+".default.localhost", routing.Target{Revision: key(name), Percent: 100})
	}
	for i := range 10_000 {
		g.SetRoute(route(i))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		g.SetRoute(route(i))
	}
}
