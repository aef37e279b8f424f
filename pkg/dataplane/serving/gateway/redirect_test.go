package gateway

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// redirecting makes the tests' host redirect to HTTPS, beside cluster-local host "local" with the same option, and host "other" without it.
func redirecting(b *bench) {
	all := []routing.Target{{Revision: key("r"), Percent: 100}}
	b.SetRoute(&routing.Route{Key: key("app"), Hosts: []routing.Host{
		{Name: "app", Targets: all, RedirectToHTTPS: true},
		{Name: "local", Targets: all, RedirectToHTTPS: true, ClusterLocal: true},
		{Name: "other", Targets: all},
	}})
}

// TestRedirect covers the response to requests without TLS for a host that is redirected to HTTPS, for each form of a target.
func TestRedirect(t *testing.T) {
	for name, test := range map[string]struct {
		request, location string
		status            int
	}{
		"path and query":             {"GET /path?a=1;b HTTP/1.1\r\nHost: app", "https://app:8445/path?a=1;b", 308},
		"root":                       {"HEAD / HTTP/1.1\r\nHost: app", "https://app:8445/", 308},
		"port, case, trailing dot":   {"DELETE /x HTTP/1.1\r\nHost: APP.:8080", "https://app:8445/x", 308},
		"escapes":                    {"GET /%2e%2E/a%20b HTTP/1.1\r\nHost: app", "https://app:8445/%2e%2E/a%20b", 308},
		"another host as path":       {"GET //evil.example/x HTTP/1.1\r\nHost: app", "https://app:8445//evil.example/x", 308},
		"another host as query":      {"GET /?@evil.example HTTP/1.1\r\nHost: app", "https://app:8445/?@evil.example", 308},
		"another forwarded host":     {"GET / HTTP/1.1\r\nHost: app\r\nX-Forwarded-Host: evil.example", "https://app:8445/", 308},
		"pretended scheme":           {"GET / HTTP/1.1\r\nHost: app\r\nX-Forwarded-Proto: https\r\nForwarded: proto=https", "https://app:8445/", 308},
		"body":                       {"POST /x HTTP/1.1\r\nHost: app\r\nContent-Length: 5\r\n\r\nhello", "https://app:8445/x", 308},
		"body that streams":          {"PUT /x HTTP/1.1\r\nHost: app\r\nTransfer-Encoding: chunked\r\n\r\n0", "https://app:8445/x", 308},
		"asterisk":                   {"OPTIONS * HTTP/1.1\r\nHost: app", "https://app:8445", 308},
		"absolute":                   {"GET http://app:8080/x?y HTTP/1.1\r\nHost: app:8080", "https://app:8445/x?y", 308},
		"absolute with another Host": {"GET http://app/x HTTP/1.1\r\nHost: evil.example", "https://app:8445/x", 308},
		"absolute without path":      {"GET http://app?y HTTP/1.1\r\nHost: app", "https://app:8445/?y", 308},
		"authority":                  {"CONNECT app:443 HTTP/1.1\r\nHost: app:443", "", 405},
		"HTTP/1.0":                   {"GET /x HTTP/1.0\r\nHost: app", "https://app:8445/x", 308},
		"upgrade":                    {"GET /x HTTP/1.1\r\nHost: app\r\nConnection: Upgrade\r\nUpgrade: websocket", "https://app:8445/x", 308},
		"challenge":                  {"GET /.well-known/acme-challenge/to-k_en9 HTTP/1.1\r\nHost: app", "", 200},
		"challenge, absolute":        {"GET http://app/.well-known/acme-challenge/token HTTP/1.1\r\nHost: app", "", 200},
		"challenge without a token":  {"GET /.well-known/acme-challenge/ HTTP/1.1\r\nHost: app", "https://app:8445/.well-known/acme-challenge/", 308},
		"path that does not stay below challenges": {"GET /.well-known/acme-challenge/../x HTTP/1.1\r\nHost: app", "https://app:8445/.well-known/acme-challenge/../x", 308},
		"probe of the kubelet":                     {"GET /x HTTP/1.1\r\nHost: app\r\nUser-Agent: kube-probe/1.34", "", 200},
		"probe of Knative":                         {"GET /x HTTP/1.1\r\nHost: app\r\nk-network-probe: probe", "", 200},
		"probe for the kubelet":                    {"GET http://app/x HTTP/1.1\r\nHost: app\r\nK-Kubelet-Probe: queue", "", 200},
		"probe of an unknown host":                 {"GET / HTTP/1.1\r\nHost: unknown\r\nK-Network-Probe: probe", "", 404},
		"agent that names a probe":                 {"GET /x HTTP/1.1\r\nHost: app\r\nUser-Agent: a kube-probe/1.34", "https://app:8445/x", 308},
		"agent without a version":                  {"GET /x HTTP/1.1\r\nHost: app\r\nUser-Agent: kube-probe", "https://app:8445/x", 308},
		"probe without a value":                    {"GET /x HTTP/1.1\r\nHost: app\r\nK-Network-Probe: ", "https://app:8445/x", 308},
		"probe with another name":                  {"GET /x HTTP/1.1\r\nHost: app\r\nK_Network_Probe: probe", "https://app:8445/x", 308},
		"cluster-local host":                       {"GET / HTTP/1.1\r\nHost: local", "", 200},
		"asterisk to another host":                 {"OPTIONS * HTTP/1.1\r\nHost: other", "", 204},
		"host without redirect":                    {"GET / HTTP/1.1\r\nHost: other", "", 200},
		"unknown host":                             {"GET / HTTP/1.1\r\nHost: unknown", "", 404},
	} {
		t.Run(name, func(t *testing.T) {
			for _, standardOnly := range []bool{false, true} {
				b := serve(t, Options{HTTPSPort: 8445, StandardOnly: standardOnly}, revision(0), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.RequestURI == "*" {
						w.WriteHeader(http.StatusNoContent)
					}
				}))
				redirecting(b)
				method, _, _ := strings.Cut(test.request, " ")
				head, body, _ := strings.Cut(test.request, "\r\n\r\n")
				answer := talk(t, b, head+"\r\nConnection: close\r\n\r\n"+body+"\r\n\r\n")
				res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), &http.Request{Method: method})
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if res.StatusCode != test.status || res.Header.Get("Location") != test.location {
					t.Errorf("standard path only %v: got %d, %q, want %d, %q", standardOnly, res.StatusCode, res.Header.Get("Location"), test.status, test.location)
				}
			}
		})
	}
}

// TestRedirectOnPaths covers redirects to the default port of HTTPS on each path, after which connections stay open.
func TestRedirectOnPaths(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") })
	onPaths(t, Options{HTTPSPort: 443}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		redirecting(b)
		b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		for range 2 {
			r := send()
			r.Host = "APP:8080"
			res, err := b.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusPermanentRedirect || res.Header.Get("Location") != "https://app/path?a=1;b" {
				t.Errorf("got %s, %q", res.Status, res.Header.Get("Location"))
			}
		}
		r := send()
		r.Host = "other"
		if res, body := b.do(t, r); body != "reached" {
			t.Errorf("a host without redirect: %s %q", res.Status, body)
		}
	})
}
