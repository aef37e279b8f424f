package routetable

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// prefixes are the paths of a host. /none has no application.
var prefixes = []string{"/api", "/api/v1", "/apis", "/a", "/admin", "/none", "/x~_-.y"}

// withPaths returns the route of a host with paths, each an alias of a host of its prefix. The rest is an alias of host "/".
func withPaths(host string, prefixes ...string) *routing.Route {
	h := routing.Host{Name: host, Alias: &routing.Alias{Route: key("app"), Host: "/"}}
	for _, prefix := range prefixes {
		p := routing.Path{Prefix: prefix}
		if prefix != "/none" {
			p.Alias = &routing.Alias{Route: key("app"), Host: prefix}
		}
		h.Paths = append(h.Paths, p)
	}
	return &routing.Route{Key: key(host), Hosts: []routing.Host{h}}
}

// found returns the prefix to which a target leads, or "ambiguous".
func found(t *testing.T, h *Host[routing.Key], target string) string {
	t.Helper()
	alias, ok := AliasOf(h, target)
	if ofBytes, okBytes := AliasOf(h, []byte(target)); ofBytes != alias || okBytes != ok {
		t.Errorf("%q: %v, %t as string, %v, %t as bytes", target, alias, ok, ofBytes, okBytes)
	}
	switch {
	case !ok:
		return "ambiguous"
	case alias == nil:
		return "/none"
	}
	return alias.Host
}

// TestPaths checks that the longest prefix of whole segments counts, and that paths which other parties might parse differently have no host.
func TestPaths(t *testing.T) {
	table := New[routing.Key]()
	table.Set(withPaths("h", prefixes...), self)
	h := Lookup(table, "h")
	for target, want := range map[string]string{
		"/": "/", "/api": "/api", "/api/": "/api", "/api/x": "/api", "/apix": "/", "/ap": "/", "/API": "/", "/x/api": "/",
		"/api/v1": "/api/v1", "/api/v1/": "/api/v1", "/api/v1/x/y": "/api/v1", "/api/v12": "/api", "/apis": "/apis", "/apis/v1": "/apis", "/a/pi": "/a",
		"/none": "/none", "/none/x": "/none", "/nonesuch": "/", "/x~_-.y/z": "/x~_-.y", "/x~_-.y-": "/",
		"/?x=/api": "/", "/api?": "/api", "/api?x=//../%61;": "/api", "/api/?x": "/api", "/apix?": "/", "/?": "/",
		"": "/", "*": "/", "api": "/",
		"/api/...": "/api", "/api/.x": "/api", "/..x": "/", "/x..": "/", "/x.": "/",
		"/%C3%BC/%20%25%40%3f%3A": "/", "/api/%c3%bc": "/api", "/a%40": "/", "/ü": "/", "/api/a:b,c=d&e+f$g!h*(i)'@j": "/api",
		"//": "ambiguous", "//api": "ambiguous", "/x//api": "ambiguous", "/api//": "ambiguous", "/api//v1": "ambiguous",
		"/.": "ambiguous", "/..": "ambiguous", "/./api": "ambiguous", "/api/../admin": "ambiguous", "/x/..": "ambiguous", "/x/../?q": "ambiguous", "/api/.?q": "ambiguous",
		"/%61pi": "ambiguous", "/%41": "ambiguous", "/x/%2e%2e/api": "ambiguous", "/x/%2E./api": "ambiguous", "/api%2fv1": "ambiguous", "/x/..%2Fapi": "ambiguous",
		"/x%7E_-.y": "ambiguous", "/api%2": "ambiguous", "/api%": "ambiguous", "/api%2?x": "ambiguous", "/api%zz": "ambiguous", "/api%00": "ambiguous", "/api%0A": "ambiguous", "/api%7f": "ambiguous",
		"/api;v=1": "ambiguous", "/..;/api": "ambiguous", "/;/api": "ambiguous", "/api%3Bx": "ambiguous",
		"/x\\..\\api": "ambiguous", "\\api": "/", "/\\api": "ambiguous", "/x%5C..%5capi": "ambiguous",
	} {
		if got := found(t, h, target); got != want {
			t.Errorf("%q leads to %s, want %s", target, got, want)
		}
	}
	for _, target := range []string{"/api/v1/x?y=z", "/other", "/api/../x"} {
		bytes := []byte(target)
		if n := testing.AllocsPerRun(100, func() { AliasOf(h, target); AliasOf(h, bytes) }); n != 0 {
			t.Errorf("%q: %v allocations", target, n)
		}
	}
}

// TestNoPaths covers hosts without paths, which accept all targets, and hosts with paths only.
func TestNoPaths(t *testing.T) {
	table := New[routing.Key]()
	table.Set(withPaths("h"), self)
	table.Set(routeTo("app", "app", routing.Target{Revision: key("r"), Percent: 100}), self)
	if got := found(t, Lookup(table, "h"), "/x/../%61pi;//"); got != "/" {
		t.Errorf("without paths: %s", got)
	}
	if Lookup(table, "app").Aliased() || !Lookup(table, "h").Aliased() {
		t.Error("a host with Revisions is aliased, or one with an alias is not")
	}
	route := withPaths("h", "/api")
	route.Hosts[0].Alias = nil
	table.Set(route, self)
	h := Lookup(table, "h")
	if h == nil || !h.Aliased() {
		t.Fatalf("host with paths only: %+v", h)
	}
	if got := found(t, h, "/api/x"); got != "/api" {
		t.Errorf("/api/x leads to %s", got)
	}
	if got := found(t, h, "/"); got != "/none" {
		t.Errorf("/ leads to %s", got)
	}
	// An alias of an alias has no host.
	if h := Follow(table, &routing.Alias{Route: key("h"), Host: "h"}); h != nil {
		t.Errorf("followed to %+v", h)
	}
}

// ambiguous is a model of the rejected paths.
var ambiguous = regexp.MustCompile(`(?s)//|/\.\.?(/|$)|[\\;]|%([01].|2[dDeEfF]|3[0-9bB]|4[1-9a-fA-F]|5[0-9aAcCfF]|6[1-9a-fA-F]|7[0-9aAeEfF])|%([^0-9a-fA-F]|$|.[^0-9a-fA-F]|.$)`)

// longest is a model of the prefix of a path, by segments.
func longest(p string) string {
	best := []string(nil)
	segments := strings.Split(p, "/")
	for _, prefix := range prefixes {
		want := strings.Split(prefix, "/")
		if len(want) <= len(segments) && len(want) > len(best) && strings.Join(segments[:len(want)], "/") == prefix {
			best = want
		}
	}
	if best == nil {
		return "/"
	}
	return strings.Join(best, "/")
}

// expectPath compares the prefix to which a target leads with the models, and with the prefix for a party that decodes and cleans the path.
func expectPath(t *testing.T, h *Host[routing.Key], target string) {
	t.Helper()
	got := found(t, h, target)
	if !strings.HasPrefix(target, "/") {
		if got != "/" {
			t.Errorf("%q without a path leads to %s", target, got)
		}
		return
	}
	raw, _, _ := strings.Cut(target, "?")
	if ambiguous.MatchString(raw) {
		if got != "ambiguous" {
			t.Errorf("ambiguous %q leads to %s", target, got)
		}
		return
	}
	if want := longest(raw); got != want {
		t.Errorf("%q leads to %s, want %s", target, got, want)
	}
	decoded, err := url.PathUnescape(raw)
	if err != nil {
		t.Fatalf("%q is accepted: %v", target, err)
	}
	if want := longest(path.Clean(decoded)); got != want {
		t.Errorf("%q leads to %s, and for others to %s", target, got, want)
	}
}

// BenchmarkAliasOf measures a host with the most paths, none of which is found.
func BenchmarkAliasOf(b *testing.B) {
	table := New[routing.Key]()
	var many []string
	for i := range 32 {
		many = append(many, fmt.Sprintf("/service/area-%02d", i))
	}
	table.Set(withPaths("none"), self)
	table.Set(withPaths("paths", many...), self)
	for _, host := range []string{"none", "paths"} {
		h, target := Lookup(table, host), []byte("/service/area/products/4711?sort=price")
		b.Run(host, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if alias, ok := AliasOf(h, target); alias == nil || !ok {
					b.Fatal("no alias")
				}
			}
		})
	}
}
