package gateway

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// mapped sets an alias of a host of route "app".
func mapped(g *Gateway, name, route, host string) {
	g.SetRoute(&routing.Route{Key: key(name), Hosts: []routing.Host{{Name: name, Alias: &routing.Alias{Route: key(route), Host: host}}}})
}

var reportHost = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s %s", r.Host, r.Header.Get("K-Original-Host"), r.Header.Get("X-Forwarded-Host"))
})

// TestAlias covers requests to a host that is an alias of another one, on each path: the backend gets the other name, and both follow
// the same route. Clients cannot set the original host.
func TestAlias(t *testing.T) {
	onPaths(t, Options{}, reportHost, func(t *testing.T, b *bench, send func() *http.Request) {
		ask := func(host string) (int, string) {
			t.Helper()
			r := send()
			r.Host = host
			r.Header.Set("K-Original-Host", "forged")
			res, body := b.do(t, r)
			return res.StatusCode, body
		}
		mapped(b.Gateway, "www.example.com", "app", "app")
		mapped(b.Gateway, "other.example.com", "other", "app")
		mapped(b.Gateway, "again.example.com", "www.example.com", "www.example.com")
		if code, body := ask("WWW.example.com:8080"); code != http.StatusOK || body != "app WWW.example.com:8080 WWW.example.com:8080" {
			t.Errorf("mapped: %d %q", code, body)
		}
		if code, body := ask("app"); code != http.StatusOK || body != "app  app" {
			t.Errorf("the host itself: %d %q", code, body)
		}
		for _, unknown := range []string{"other.example.com", "again.example.com"} {
			if code, body := ask(unknown); code != http.StatusNotFound {
				t.Errorf("%s: %d %q, want 404", unknown, code, body)
			}
		}
		// The Route moves its host.
		b.SetRoute(routeTo("app", "moved", routing.Target{Revision: key("r"), Percent: 100}))
		if code, body := ask("www.example.com"); code != http.StatusNotFound {
			t.Errorf("after the Route lost its host: %d %q", code, body)
		}
		mapped(b.Gateway, "www.example.com", "app", "moved")
		if code, body := ask("www.example.com"); code != http.StatusOK || body != "moved www.example.com www.example.com" {
			t.Errorf("after the mapping follows: %d %q", code, body)
		}
		b.DeleteRoute(key("www.example.com"))
		if code, _ := ask("www.example.com"); code != http.StatusNotFound {
			t.Errorf("after the deletion: %d", code)
		}
	})
}

// TestAliasAtOtherReplica covers a request that the replica of the client forwards to the owner of the Revision.
func TestAliasAtOtherReplica(t *testing.T) {
	owner, other := ownerAndOther("a", "b")
	all := serveReplicas(t, revision(2), []workload.Instance{{Name: "i", Address: listen(t, reportHost)}}, io.Discard, []string{"a", "b"}, "a", "b")
	for _, name := range []string{owner, other} {
		mapped(all[name].Gateway, "www.example.com", "app", "app")
		r := all[name].request(t, http.MethodGet, nil)
		r.Host = "www.example.com"
		r.Header.Set("K-Original-Host", "forged")
		if res, body := all[name].do(t, r); res.StatusCode != http.StatusOK || body != "app www.example.com www.example.com" {
			t.Errorf("at %s: %s %q", name, res.Status, body)
		}
	}
}

// TestAliasVisibility checks that an alias of a cluster-local host is known outside of the cluster, while the host itself is not.
func TestAliasVisibility(t *testing.T) {
	b := serve(t, Options{}, revision(0), reportHost)
	b.SetRoute(&routing.Route{Key: key("app"), Hosts: []routing.Host{
		{Name: "app", ClusterLocal: true, Targets: []routing.Target{{Revision: key("r"), Percent: 100}}},
	}})
	mapped(b.Gateway, "www.example.com", "app", "app")
	for host, want := range map[string]bool{"app": false, "www.example.com": true} {
		in := inbound{public: true, request: &http.Request{Host: host}}
		if _, known := b.chain.lookup(&in); known != want {
			t.Errorf("%s is known outside of the cluster: %t, want %t", host, known, want)
		}
	}
}
