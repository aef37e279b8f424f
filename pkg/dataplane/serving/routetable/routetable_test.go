package routetable

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"regexp"
	"strings"
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

// TestLookup checks that requests are dispatched by their Host (serving 8-6), in any notation.
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

// wildcards returns a table with wildcards of several lengths, and a host below one.
func wildcards() *Table[routing.Key] {
	table := New[routing.Key]()
	for route, hosts := range map[string][]string{"a": {"example.com", "*.example.com"}, "b": {"b.example.com"}, "c": {"*.c.example.com"}} {
		r := &routing.Route{Key: key(route)}
		for _, host := range hosts {
			r.Hosts = append(r.Hosts, routing.Host{Name: host, Targets: []routing.Target{{Revision: key(route), Percent: 100}}})
		}
		table.Set(r, self)
	}
	return table
}

// TestWildcard checks that a wildcard matches one label, that a host with the exact name has precedence, and that no client can name
// the wildcard or send characters that host names do not have.
func TestWildcard(t *testing.T) {
	table := wildcards()
	long := strings.Repeat("x", maxLabel)
	for name, want := range map[string]string{
		"example.com":               "a",
		"www.example.com":           "a",
		"WWW.Example.com.:8080":     "a",
		"xn--bcher-kva.example.com": "a",
		"a_b-9.example.com":         "a",
		long + ".example.com":       "a",
		"b.example.com":             "b",
		"x.b.example.com":           "",
		"c.example.com":             "a",
		"x.c.example.com":           "c",
		"x.y.c.example.com":         "",
		"x" + long + ".example.com": "",
		"*.example.com":             "",
		"*.c.example.com":           "",
		"**.example.com":            "",
		"a*.example.com":            "",
		".example.com":              "",
		"..example.com":             "",
		"a b.example.com":           "",
		"a/b.example.com":           "",
		"a\"b.example.com":          "",
		"a@b.example.com":           "",
		"a:b.example.com":           "",
		"a\x00.example.com":         "",
		"ü.example.com":             "",
		"wwwexample.com":            "",
		"x.org":                     "",
		"*":                         "",
	} {
		for _, got := range []*Host[routing.Key]{Lookup(table, name), Lookup(table, []byte(name))} {
			if want == "" && got != nil || want != "" && (got == nil || got.route != key(want)) {
				t.Errorf("lookup(%q) = %+v, want route %q", name, got, want)
			}
		}
	}
	for _, name := range []string{"www.example.com", "www.example.org"} {
		if n := testing.AllocsPerRun(100, func() { Lookup(table, name) }); n != 0 {
			t.Errorf("lookup(%q) allocates %v times", name, n)
		}
	}
	table.Delete(key("b"))
	if h := Lookup(table, "b.example.com"); h == nil || h.route != key("a") {
		t.Errorf("after the deletion of its own host: %+v", h)
	}
	table.Delete(key("a"))
	if h := Lookup(table, "www.example.com"); h != nil {
		t.Errorf("after the deletion of the wildcard: %+v", h)
	}
}

// FuzzLookup expects the same host as a search of all names, and the same path as a search of all prefixes.
func FuzzLookup(f *testing.F) {
	for _, seed := range []string{"example.com", "www.example.com", "B.example.com:80", "x.c.example.com.", "*.example.com", ".example.com", "[::1]:80", "a/b.example.com"} {
		f.Add(seed, "/")
	}
	for _, seed := range []string{"/api/v1?x", "/apix", "/api/../admin", "/%61pi", "/a%2Fb", "//api", "/..;/api", "/x\\api", "*"} {
		f.Add("paths", seed)
	}
	table := wildcards()
	table.Set(withPaths("paths", prefixes...), self)
	paths := Lookup(table, "paths")
	label := regexp.MustCompile(`^[a-z0-9_-]{1,63}$`)
	f.Fuzz(func(t *testing.T, header, target string) {
		expectPath(t, paths, target)
		name := header
		if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, ']') {
			name = name[:i]
		}
		name = asciiLower(strings.TrimSuffix(name, "."))
		first, parent, _ := strings.Cut(name, ".")
		want := ""
		switch {
		case len(name) > maxHostName:
		case name == "paths":
			want = "paths"
		case name == "example.com":
			want = "a"
		case name == "b.example.com":
			want = "b"
		case !label.MatchString(first):
		case parent == "example.com":
			want = "a"
		case parent == "c.example.com":
			want = "c"
		}
		if got := Lookup(table, header); (got != nil) != (want != "") || got != nil && got.route != key(want) {
			t.Errorf("lookup(%q) = %+v, want route %q", header, got, want)
		}
	})
}

// asciiLower is like strings.ToLower for ASCII only.
func asciiLower(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// TestReplace checks that a host belongs to the Route that got it last (serving 8-3), and that a table that was read before a change does not change.
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
		t.Errorf("host x of the earlier table is %v, want route a", h)
	}
	table.Set(routeTo("b", "y", all), self)
	if Lookup(table, "x") != nil || Lookup(table, "y") == nil {
		t.Error("route b has not moved from x to y")
	}
	table.Delete(key("b"))
	if len(table.hosts) != 0 {
		t.Errorf("hosts remain: %v", table.hosts)
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
	b.Run("wildcard", func(b *testing.B) {
		table.Set(routeTo("wildcard", "*.example.com", routing.Target{Revision: key("wildcard"), Percent: 100}), self)
		b.ReportAllocs()
		for b.Loop() {
			if Lookup(table, "www.example.com") == nil {
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
