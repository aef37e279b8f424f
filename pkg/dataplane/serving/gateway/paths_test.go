package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// mapPaths sets a host whose root is an alias of the open host "open", /admin of the host "app", and /missing of nothing.
func mapPaths(g *Gateway, name string) {
	g.SetRoute(routeTo("open", "open", routing.Target{Revision: key("r"), Percent: 100}))
	alias := func(name string) *routing.Alias { return &routing.Alias{Route: key(name), Host: name} }
	g.SetRoute(&routing.Route{Key: key(name), Hosts: []routing.Host{{Name: name, Alias: alias("open"), Paths: []routing.Path{
		{Prefix: "/admin", Alias: alias("app")}, {Prefix: "/admin/open", Alias: alias("open")}, {Prefix: "/missing"}, {Prefix: "/unserved", Alias: alias("gone")},
	}}}})
}

// reportPath responds with the Host and the target of the request.
var reportPath = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", r.Host, r.RequestURI) })

// pathTests are requests for a host of mapPaths whose host "app" is restricted: the status, and the body of success.
var pathTests = []struct {
	target, token string
	status        int
	body          string
}{
	{"/", "", 200, "open /"},
	{"/administrator?x=/admin", "", 200, "open /administrator?x=/admin"},
	{"/admin", "", 401, ""},
	{"/admin/x%20y?z", "", 401, ""},
	{"/admin/x", "of-mallory", 403, ""},
	{"/admin/x%20y?z=..", "of-jane", 200, "app /admin/x%20y?z=.."},
	{"/admin/open/x", "", 200, "open /admin/open/x"},
	{"/missing/x", "", 404, ""},
	{"/unserved", "", 404, ""},
	{"/x/../admin", "", 400, ""},
	{"/admin/open/../x", "", 400, ""},
	{"/admin/open/..%2fx", "", 400, ""},
	{"/%61dmin", "", 400, ""},
	{"//admin", "", 400, ""},
	{"/admin/open//x", "", 400, ""},
	{"/x;/../admin", "", 400, ""},
	{"/x\\..\\admin", "", 400, ""},
}

// TestPaths covers the applications of paths on each path through the gateway: each restricts its own callers, requests keep their target,
// and no notation of a path reaches another application.
func TestPaths(t *testing.T) {
	var reviewer reviewer
	onPaths(t, Options{Reviews: reviewer.reviews()}, reportPath, func(t *testing.T, b *bench, send func() *http.Request) {
		b.SetRoute(restricted())
		mapPaths(b.Gateway, "www.example.com")
		for _, test := range pathTests {
			r := send()
			r.Host = "www.example.com"
			r.URL.Opaque, r.URL.RawQuery, _ = strings.Cut(test.target, "?")
			if strings.HasPrefix(test.target, "//") {
				// The client would treat it as an authority.
				r.URL.Opaque, r.URL.Path = "", test.target
			}
			if test.token != "" {
				r.Header.Set("Authorization", "Bearer "+test.token)
			}
			if res, body := b.do(t, r); res.StatusCode != test.status || test.body != "" && body != test.body {
				t.Errorf("%s with token %q: %s %q, want %d %q", test.target, test.token, res.Status, body, test.status, test.body)
			}
		}
	})
}

// TestPathsOfTargets covers targets in other forms than a path.
func TestPathsOfTargets(t *testing.T) {
	var reviewer reviewer
	b := serve(t, Options{Reviews: reviewer.reviews()}, revision(0), reportPath)
	b.SetRoute(restricted())
	mapPaths(b.Gateway, "www.example.com")
	for request, want := range map[string]string{
		"GET http://www.example.com/admin":    "401",
		"GET http://www.example.com/x/../":    "400",
		"GET http://www.example.com/%61dmin":  "400",
		"GET http://www.example.com//admin":   "400",
		"GET http://www.example.com/missing":  "404",
		"GET http://www.example.com":          "200",
		"GET http://www.example.com?x=/admin": "200",
		"OPTIONS *":                           "200",
		"GET http://www.example.com/x\\admin": "400",
		// net/http decodes and encodes these: the path that counts is the one that the application gets.
		"GET http://www.example.com/x\"%2fy":        "200",
		"GET http://www.example.com/x\"%2f../admin": "400",
	} {
		answer := talk(t, b, request+" HTTP/1.1\r\nHost: www.example.com\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(answer, "HTTP/1.1 "+want+" ") || strings.Contains(request, "%2fy") && !strings.HasSuffix(answer, "open /x%22/y") {
			t.Errorf("%s: %q, want %s", request, answer, want)
		}
	}
}

// TestPathsAtOtherReplica covers requests that the replica of the client forwards to the owner of the Revision.
func TestPathsAtOtherReplica(t *testing.T) {
	owner, other := ownerAndOther("a", "b")
	all := serveReplicas(t, revision(2), []workload.Instance{{Name: "i", Address: listen(t, reportPath)}}, io.Discard, []string{"a", "b"}, "a", "b")
	for _, name := range []string{owner, other} {
		var reviewer reviewer
		all[name].options.Reviews = reviewer.reviews()
		all[name].SetRoute(restricted())
		mapPaths(all[name].Gateway, "www.example.com")
		for target, want := range map[string]string{"/x": "200 open /x", "/admin/open": "200 open /admin/open", "/admin/x": "401", "/missing": "404", "/x/../admin": "400"} {
			r := all[name].request(t, http.MethodGet, nil)
			r.Host, r.URL.Opaque, r.URL.RawQuery = "www.example.com", target, ""
			if res, body := all[name].do(t, r); !strings.HasPrefix(fmt.Sprintf("%d %s", res.StatusCode, body), want) {
				t.Errorf("%s at %s: %s %q, want %s", target, name, res.Status, body, want)
			}
		}
	}
}

// TestPathsOfUpgrades covers WebSockets.
func TestPathsOfUpgrades(t *testing.T) {
	var reviewer reviewer
	b := serve(t, Options{Reviews: reviewer.reviews()}, revision(0), upgrading(func(conn net.Conn, _ io.Reader) { conn.Close() }))
	b.SetRoute(restricted())
	mapPaths(b.Gateway, "www.example.com")
	for target, want := range map[string]int{"/x": 101, "/admin": 401, "/admin/open": 101, "/missing": 404, "/%61dmin": 400} {
		conn, err := net.Dial("tcp", b.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: www.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", target)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // closing the connection suffices
		if err != nil || res.StatusCode != want {
			t.Errorf("%s: %v, %v, want %d", target, res, err, want)
		}
	}
}
