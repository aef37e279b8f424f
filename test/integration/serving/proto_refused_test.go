package serving

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestUnknownHost covers hosts without a Route (serving 8-3).
func TestUnknownHost(t *testing.T) {
	t.Parallel()
	_, port, _ := strings.Cut(shared.gateway, ":")
	for protocol, client := range shared.clients(t) {
		for _, host := range []string{"unknown.localhost", "localhost", "127.0.0.1", "unknown.test-1.svc.cluster.local"} {
			a := mustAsk(t, client, http.MethodGet, "http://"+host+":"+port+"/", nil)
			if a.code != http.StatusNotFound {
				t.Errorf("by %s, host %s got %d, want 404", protocol, host, a.code)
			}
		}
	}
}

// TestMalformedRequests covers requests that two parsers may read differently. They are rejected, do not reach a backend, and a
// second request inside them is not answered.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "strict", instances("1"))
	hidden := get(s.host, "/count?hidden")
	for name, request := range map[string]string{
		"length and chunks":           "POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunks and length":           "POST /echo HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"two lengths":                 "POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
		"equal lengths":               "POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
		"length list":                 "POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5, 5\r\n\r\nhello",
		"signed length":               "POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: +5\r\n\r\nhello",
		"negative length":             "POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: -5\r\n\r\nhello",
		"hexadecimal length":          "POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0x5\r\n\r\nhello",
		"huge length":                 "POST /echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 99999999999999999999\r\n\r\n",
		"two codings":                 "POST /echo HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"coding list":                 "POST /echo HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"identity coding":             "POST /echo HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: identity\r\n\r\n",
		"unknown coding":              "POST /echo HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"coding with a vertical tab":  "POST /echo HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n",
		"coding behind space":         "POST /echo HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"coding with chunks in 1.0":   "POST /echo HTTP/1.0\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
		"length and chunks, absolute": "POST http://HOST/echo HTTP/1.1\r\nHost: HOST\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"user in the absolute form":   "GET http://user@HOST/count HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"folded field":                "GET /count HTTP/1.1\r\nHost: HOST\r\nX-Folded: a\r\n b\r\n\r\n",
		"folded first field":          "GET /count HTTP/1.1\r\n Host: HOST\r\n\r\n",
		"bare line feeds":             "GET /count HTTP/1.1\nHost: HOST\n\n",
		"one bare line feed":          "GET /count HTTP/1.1\r\nHost: HOST\nX-A: b\r\n\r\n",
		"bare carriage return":        "GET /count HTTP/1.1\r\nHost: HOST\r\nX-A: b\rX-B: c\r\n\r\n",
		"space before colon":          "GET /count HTTP/1.1\r\nHost : HOST\r\n\r\n",
		"field without name":          "GET /count HTTP/1.1\r\nHost: HOST\r\n: empty\r\n\r\n",
		"field without colon":         "GET /count HTTP/1.1\r\nHost: HOST\r\nnonsense\r\n\r\n",
		"zero byte in a field":        "GET /count HTTP/1.1\r\nHost: HOST\r\nX-Zero: a\x00b\r\n\r\n",
		"control in a name":           "GET /count HTTP/1.1\r\nHost: HOST\r\nX-\x01: a\r\n\r\n",
		"two hosts":                   "GET /count HTTP/1.1\r\nHost: HOST\r\nHost: other.localhost\r\n\r\n",
		"equal hosts":                 "GET /count HTTP/1.1\r\nHost: HOST\r\nHost: HOST\r\n\r\n",
		"no host":                     "GET /count HTTP/1.1\r\nX-A: b\r\n\r\n",
		"list of hosts":               "GET /count HTTP/1.1\r\nHost: HOST, other.localhost\r\n\r\n",
		"user in the host":            "GET /count HTTP/1.1\r\nHost: user@HOST\r\n\r\n",
		"path in the host":            "GET /count HTTP/1.1\r\nHost: HOST/count\r\n\r\n",
		"two spaces after the method": "GET  /count HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"tab after the method":        "GET\t/count HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"space in the target":         "GET /count x HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"no target":                   "GET HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"relative target":             "GET count HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"broken escape":               "GET /count%zz HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"no version":                  "GET /count\r\nHost: HOST\r\n\r\n",
		"malformed version":           "GET /count HTTP/1.1x\r\nHost: HOST\r\n\r\n",
		"lower case version":          "GET /count http/1.1\r\nHost: HOST\r\n\r\n",
		"broken method":               "G(T /count HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"line before the request":     "nonsense\r\nGET /count HTTP/1.1\r\nHost: HOST\r\n\r\n",
		"absolute form without host":  "GET http:///count HTTP/1.1\r\nHost: HOST\r\n\r\n",
	} {
		w := s.mustDial(t)
		if _, err := io.WriteString(w, strings.ReplaceAll(request, "HOST", s.host)+hidden); err != nil {
			t.Fatal(err)
		}
		a, err := w.read(http.MethodGet)
		if err != nil || a.code != http.StatusBadRequest {
			t.Errorf("%s: got %+v, %v, want 400", name, a, err)
			continue
		}
		if rest, err := io.ReadAll(w.in); err != nil || len(rest) > 0 {
			t.Errorf("%s: after 400 got %q, %v, want the end of the connection", name, rest, err)
		}
	}
	if total := report[countReport](t, s, "/count").Total; total != 1 {
		t.Errorf("%d requests reached the instance, want only the last one", total)
	}
}

// TestMalformedBodies covers malformed bodies: the client receives 400 or the connection closes, and the rest of the body is
// not parsed as a request.
func TestMalformedBodies(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "strict-bodies", instances("1"))
	hidden := get(s.host, "/count?hidden")
	const chunked = "POST /upload HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n"
	bodies := map[string]string{
		"no size":                 "\r\n",
		"signed size":             "+5\r\nhello\r\n0\r\n\r\n",
		"size with a prefix":      "0x5\r\nhello\r\n0\r\n\r\n",
		"huge size":               "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
		"more than the size":      "4\r\nhello\r\n0\r\n\r\n",
		"less than the size":      "6\r\nhello\r\n0\r\n\r\n",
		"size with another digit": "5g\r\nhello\r\n0\r\n\r\n",
	}
	for name, body := range bodies {
		w := s.mustDial(t)
		if _, err := io.WriteString(w, strings.ReplaceAll(chunked, "HOST", s.host)+body+hidden); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(w.in)
		if err != nil {
			t.Errorf("%s: reading the answer: %v", name, err)
		}
		if text := string(rest); strings.Contains(text, " 200 ") || strings.Contains(text, "total") {
			t.Errorf("%s: got %q, want no accepted request", name, text)
		}
	}
	// Each may have reached the backend once, because it was forwarded while it arrived.
	if total := report[countReport](t, s, "/count").Total; total > int64(len(bodies))+1 {
		t.Errorf("%d requests reached the instance, want at most %d", total, len(bodies)+1)
	}
}

// TestHeaderBombs covers headers that are too large, by size and by number.
func TestHeaderBombs(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "bombs", instances("1"))
	large := strings.Repeat("x", 1<<20)
	var many strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&many, "X-%d: y\r\n", i)
	}
	for name, request := range map[string]string{
		"field":  "GET /count HTTP/1.1\r\nHost: " + s.host + "\r\nX-Large: " + large + "\r\n\r\n",
		"fields": "GET /count HTTP/1.1\r\nHost: " + s.host + "\r\n" + many.String() + "\r\n",
		"target": "GET /count?" + large + " HTTP/1.1\r\nHost: " + s.host + "\r\n\r\n",
		"name":   "GET /count HTTP/1.1\r\nHost: " + s.host + "\r\n" + large + ": y\r\n\r\n",
	} {
		w := s.mustDial(t)
		// The gateway may stop reading before the end.
		_, _ = io.WriteString(w, request)
		if a, err := w.read(http.MethodGet); err != nil || a.code != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("a large %s got %+v, %v, want 431", name, a, err)
		}
	}
	client := s.h2(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/count", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Large", large)
	if response, err := client.Do(request); err == nil {
		response.Body.Close()
		if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("by HTTP/2 a large field got %d, want 431", response.StatusCode)
		}
	}
	if total := report[countReport](t, s, "/count").Total; total != 1 {
		t.Errorf("%d requests reached the instance, want only the last one", total)
	}
}

// TestHostsStayApart covers the ways to specify a host: all of them reach its Revision, and none reaches the Revision of
// another host (serving 8-1, 8-3).
func TestHostsStayApart(t *testing.T) {
	t.Parallel()
	in := namespace()
	a := shared.newSiteIn(t, in, "first", env("TARGET", "first"))
	b := shared.newSiteIn(t, in, "second", env("TARGET", "second"))
	named := func(s *site) string {
		address, err := url.Parse(s.url)
		if err != nil {
			t.Fatal(err)
		}
		return address.Hostname()
	}
	nameA, nameB := named(a), named(b)
	for name, request := range map[string]string{
		"as it is":                     get(a.host, "/"),
		"without port":                 get(nameA, "/"),
		"with another port":            get(nameA+":1", "/"),
		"in capitals":                  get(strings.ToUpper(a.host), "/"),
		"with a trailing dot":          get(nameA+".", "/"),
		"with a trailing dot and port": get(nameA+".:80", "/"),
		"in absolute form":             "GET http://" + nameA + "/ HTTP/1.1\r\nHost: " + nameA + "\r\n\r\n",
		"in absolute form, other Host": "GET http://" + a.host + "/ HTTP/1.1\r\nHost: " + nameB + "\r\n\r\n",
		"with another forwarded host":  "GET / HTTP/1.1\r\nHost: " + nameA + "\r\nX-Forwarded-Host: " + nameB + "\r\nForwarded: host=" + nameB + "\r\nX-Original-Host: " + nameB + "\r\n\r\n",
		"with another one in the path": "GET //" + nameB + "/../ HTTP/1.1\r\nHost: " + nameA + "\r\n\r\n",
	} {
		got, err := a.mustDial(t).exchange(http.MethodGet, request)
		if err != nil || strings.Contains(got.body, "second") {
			t.Errorf("%s: got %+v, %v, want no response of the other host", name, got, err)
			continue
		}
		if !strings.Contains(name, "path") && got.body != "Hello first!\n" {
			t.Errorf("%s: got %+v, want the host's own answer", name, got)
		}
	}
	// A connection is not bound to the host of its first request.
	w := a.mustDial(t)
	for range 3 {
		for s, want := range map[*site]string{a: "Hello first!\n", b: "Hello second!\n"} {
			if got, err := w.exchange(http.MethodGet, get(s.host, "/")); err != nil || got.body != want {
				t.Errorf("on one connection %s got %+v, %v", s.host, got, err)
			}
		}
	}
	client := a.h2(t)
	for _, s := range []*site{a, b, a} {
		if got := mustAsk(t, client, http.MethodGet, s.url+"/", nil); got.body != "Hello "+s.name+"!\n" {
			t.Errorf("by HTTP/2 %s got %+v", s.host, got)
		}
	}
}
