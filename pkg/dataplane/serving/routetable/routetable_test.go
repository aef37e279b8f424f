package routetable

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/benbjohnson/immutable"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

func key(name string) routing.Key { return routing.Key{Namespace: "default", Name: name} }

// self represents a Revision by its key.
func self(key routing.Key) routing.Key { return key }

func routeTo(name, host string, targets ...routing.Target) *routing.Route {
	return &routing.Route{Key: key(name), Hosts: []routing.Host{{Name: host, Targets: targets}}}
}

// TestLookup covers that requests are dispatched by their Host (serving 8-6), however it is spelled.
func TestLookup(t *testing.T) {
	table := New[routing.Key]()
	table.Set(routeTo("a", "a.default.localhost", routing.Target{Revision: key("a-1"), Percent: 100}), self)
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
		if h := Lookup(table, name); (h != nil) != found {
			t.Errorf("lookup(%q) = %v, want found %v", name, h, found)
		}
		if h := Lookup(table, []byte(name)); (h != nil) != found {
			t.Errorf("lookup([]byte(%q)) = %v, want found %v", name, h, found)
		}
	}
	if n := testing.AllocsPerRun(100, func() { Lookup(table, "a.default.localhost:8080") }); n != 0 {
		t.Errorf("lookup allocates %v times", n)
	}
}

// TestReplace covers that a host belongs to the Route that got it last (serving 8-3), and that a table which was
// read before a change stays as it is.
func TestReplace(t *testing.T) {
	table := New[routing.Key]()
	all := routing.Target{Revision: key("r"), Percent: 100}
	table.Set(routeTo("a", "x", all), self)
	before := table.snapshot.Load()
	table.Set(routeTo("b", "x", all), self)
	table.Delete(key("a"))
	if h := Lookup(table, "x"); h == nil || h.route != key("b") {
		t.Errorf("host x is %v, want route b", h)
	}
	if h := lookup(before, "x"); h == nil || h.route != key("a") {
		t.Errorf("host x of the table before is %v, want route a", h)
	}
	table.Set(routeTo("b", "y", all), self)
	if Lookup(table, "x") != nil || Lookup(table, "y") == nil {
		t.Error("route b has not moved from x to y")
	}
	table.Delete(key("b"))
	if len(table.hosts) != 0 {
		t.Errorf("hosts are left: %v", table.hosts)
	}
}

func BenchmarkSetRoute10000(b *testing.B) {
	table := New[routing.Key]()
	route := func(i int) *routing.Route {
		name := fmt.Sprintf("service-%d", i%10_000)
		return routeTo(name, name+".default.localhost", routing.Target{Revision: key(name), Percent: 100})
	}
	for i := range 10_000 {
		table.Set(route(i), self)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		table.Set(route(i), self)
	}
}

// BenchmarkLookup looks up each of 10,000 hosts by the bytes of a Host header, here and in a persistent map.
func BenchmarkLookup(b *testing.B) {
	table := New[routing.Key]()
	persistent := immutable.NewMap[string, *Host[routing.Key]](hasher{})
	headers := make([][]byte, 10_000)
	for i := range headers {
		name := fmt.Sprintf("service-%d.default.example.com", i)
		table.Set(routeTo(name, name, routing.Target{Revision: key(name), Percent: 100}), self)
		persistent = persistent.Set(name, Lookup(table, name))
		headers[i] = []byte(name + ":8080")
	}
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if Lookup(table, headers[i%len(headers)]) == nil {
				b.Fatal("no host")
			}
		}
	})
	b.Run("immutable", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			name := headers[i%len(headers)]
			var lower [maxHostName]byte
			end := bytes.LastIndexByte(name, ':')
			copy(lower[:], name[:end])
			if h, _ := persistent.Get(string(lower[:end])); h == nil {
				b.Fatal("no host")
			}
		}
	})
}

type hasher struct{}

func (hasher) Hash(name string) uint32 { return uint32(maphash.String(seed, name)) }
func (hasher) Equal(a, b string) bool  { return a == b }
