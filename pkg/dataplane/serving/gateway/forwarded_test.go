package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

// forwardedFields are the fields in which proxies describe their client.
var forwardedFields = []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded"}

// TestTrustedProxies covers the fields about the client that backends get, from a trusted proxy and from any other peer, by both
// forwarders. A request is redirected to HTTPS unless these fields report HTTPS.
func TestTrustedProxies(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		for _, name := range forwardedFields {
			fmt.Fprintln(w, strings.Join(r.Header.Values(name), "|"))
		}
	})
	const own = `for=127.0.0.1;host="other";proto=http`
	plain := []string{"127.0.0.1", "other", "http", own}
	for name, test := range map[string]struct {
		sent http.Header
		want []string
	}{
		"nothing": {nil, plain},
		"X-Forwarded": {
			http.Header{"X-Forwarded-For": {"192.0.2.1"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"shop.example"}},
			[]string{"192.0.2.1, 127.0.0.1", "shop.example", "https", own},
		},
		"several lines": {
			http.Header{"X-Forwarded-For": {"192.0.2.1", "", "192.0.2.2, 192.0.2.3"}, "X-Forwarded-Host": {"a", "b"}, "Forwarded": {"for=a", "for=b"}},
			[]string{"192.0.2.1, 192.0.2.2, 192.0.2.3, 127.0.0.1", "other", "http", "for=a, for=b, " + own},
		},
		"scheme in capitals":        {http.Header{"X-Forwarded-Proto": {"HTTPS"}}, []string{"127.0.0.1", "other", "https", own}},
		"scheme of WebSocket":       {http.Header{"X-Forwarded-Proto": {"wss"}}, []string{"127.0.0.1", "other", "https", own}},
		"first scheme of a list":    {http.Header{"X-Forwarded-Proto": {" https, http"}}, []string{"127.0.0.1", "other", "https", own}},
		"unknown scheme":            {http.Header{"X-Forwarded-Proto": {"gopher"}}, plain},
		"unknown scheme, Forwarded": {http.Header{"X-Forwarded-Proto": {"gopher"}, "Forwarded": {"proto=https"}}, []string{"127.0.0.1", "other", "https", "proto=https, " + own}},
		"both, contradictory":       {http.Header{"X-Forwarded-Proto": {"http"}, "Forwarded": {"proto=https"}}, []string{"127.0.0.1", "other", "http", "proto=https, " + own}},
		"Forwarded": {
			http.Header{"Forwarded": {`for=192.0.2.1;proto=https;host="shop.example"`}},
			[]string{"127.0.0.1", "other", "https", `for=192.0.2.1;proto=https;host="shop.example", ` + own},
		},
		"Forwarded by a chain of trusted proxies": {
			http.Header{"Forwarded": {`for=192.0.2.1;proto=https, for="[::ffff:127.0.0.9]:80";proto=http`, "for=127.0.0.8"}},
			[]string{"127.0.0.1", "other", "https", `for=192.0.2.1;proto=https, for="[::ffff:127.0.0.9]:80";proto=http, for=127.0.0.8, ` + own},
		},
		"Forwarded by a client of the proxy": {
			http.Header{"Forwarded": {"for=192.0.2.9;proto=https, for=192.0.2.1;proto=http"}},
			[]string{"127.0.0.1", "other", "http", "for=192.0.2.9;proto=https, for=192.0.2.1;proto=http, " + own},
		},
		"malformed Forwarded":         {http.Header{"Forwarded": {"proto=https", `for="b`}}, plain},
		"malformed Forwarded element": {http.Header{"Forwarded": {"proto=https; =b"}}, plain},
	} {
		t.Run(name, func(t *testing.T) {
			for _, trusted := range []bool{true, false} {
				options, want := Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8")}}, test.want
				if !trusted {
					options.TrustedProxies, want = options.TrustedProxies[:1], plain
				}
				onPaths(t, options, app, func(t *testing.T, b *bench, send func() *http.Request) {
					redirecting(b)
					b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
					r := send()
					maps.Copy(r.Header, test.sent)
					r.Host = "other"
					_, got := b.do(t, r)
					if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(got), "\n")); diff != "" {
						t.Errorf("trusted %v: the backend got (-want +got):\n%s", trusted, diff)
					}
					r = send()
					maps.Copy(r.Header, test.sent)
					if res, _ := b.do(t, r); (res.StatusCode == http.StatusPermanentRedirect) != (want[2] == "http") {
						t.Errorf("trusted %v: %s, although the backend would get the scheme %s", trusted, res.Status, want[2])
					}
				})
			}
		})
	}
}

// TestOwnFields checks that a client cannot send a field of the gateway in another spelling, which applications treat as the same field.
func TestOwnFields(t *testing.T) {
	onPaths(t, Options{}, headers, func(t *testing.T, b *bench, send func() *http.Request) {
		r := send()
		for _, name := range []string{
			"X_Forwarded_For", "X-Forwarded_For", "X_Forwarded_Host", "X-Forwarded_Proto", "K_Original_Host", "K_Proxy_Request",
			"Knative_Serving_Namespace", "Knative_Gateway_Revision", "Knative-Serving_User",
		} {
			r.Header[name] = []string{"forged"}
		}
		for _, name := range []string{"X_Other", "Knative-Serving-Namespace-And-Something-Else"} {
			r.Header[name] = []string{"kept"}
		}
		_, body := b.do(t, r)
		if strings.Contains(body, "forged") || strings.Count(body, "kept") != 2 {
			t.Errorf("the application got %s", body)
		}
	})
}

// TestUntrustedPeerCost checks that without trusted proxies no field is parsed: a request needs no allocation for its origin.
func TestUntrustedPeerCost(t *testing.T) {
	c := New(Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}).chain
	head := &http1.Head{Host: []byte("app"), Fields: []http1.Field{
		{Name: []byte("x-forwarded-proto"), Value: []byte("https")}, {Name: []byte("forwarded"), Value: []byte("for=192.0.2.1;proto=https")},
	}}
	in := inbound{peer: netip.MustParseAddrPort("127.0.0.1:1"), head: head}
	if n := testing.AllocsPerRun(100, func() { c.identify(&in) }); n != 0 {
		t.Errorf("an untrusted peer costs %v allocations", n)
	}
	head.Fields = head.Fields[:1]
	in.peer = netip.MustParseAddrPort("10.0.0.1:1")
	if n := testing.AllocsPerRun(100, func() { c.identify(&in) }); n != 0 || !in.https {
		t.Errorf("a trusted peer with X-Forwarded-Proto costs %v allocations, https %v", n, in.https)
	}
}

// TestParseForwarded covers the syntax of Forwarded (RFC 7239 4, with optional white space around semicolons).
func TestParseForwarded(t *testing.T) {
	for list, want := range map[string][]string{
		"": nil, " , ,": nil, ";": nil,
		"for=a":                   {"a/"},
		"For=a;PROTO=https":       {"a/https"},
		`for="[::1]:80"`:          {"[::1]:80/"},
		"for=a, for=b;proto=http": {"a/", "b/http"},
		"for=a ; proto=http;":     {"a/http"},
		"secret=x;host=h;by=_p":   {"/"},
		`ext="a,b;c=\"d\"",for=a`: {"/", "a/"},
	} {
		var got []string
		ok := parseForwarded(list, func(node, proto string) { got = append(got, node+"/"+proto) })
		if !ok || !slices.Equal(got, want) {
			t.Errorf("%q: valid %v, %q, want %q", list, ok, got, want)
		}
	}
	for _, list := range []string{"a", "for", "for=", "for =a", "for= a", "for=a b", `for="a`, `for="a\`, `for="a"b`, "for=a=b", "for=a;for=b", "proto=x;PROTO=x", "for=a:80", "=a", "\x00", "for=é"} {
		if parseForwarded(list, func(string, string) {}) {
			t.Errorf("%q is valid", list)
		}
	}
}

// FuzzParseForwarded checks that the order of elements decides the scheme as documented, and that no appended element can become a part
// of the client's list.
func FuzzParseForwarded(f *testing.F) {
	for _, list := range []string{"", "for=a", `for="[::1]:80";proto=https, for=127.0.0.1`, `ext="\"";for=a`, `for="b`, "for=10.0.0.1;proto=https,for=192.0.2.1;proto=http"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		count := 0
		if !parseForwarded(list, func(string, string) { count++ }) {
			return
		}
		appended, last := 0, ""
		extended := string(appendForwarded([]byte(list+", "), netip.MustParseAddr("192.0.2.7"), `h"`, true))
		if !parseForwarded(extended, func(node, proto string) { appended, last = appended+1, node+proto }) || appended != count+1 || last != "192.0.2.7https" {
			t.Errorf("%q has %d elements and %q at the end, want one more than %d", extended, appended, last, count)
		}
		in := inbound{peer: netip.MustParseAddrPort("10.0.0.1:1"), request: &http.Request{Header: http.Header{"Forwarded": {extended}}}}
		(&chain{options: &Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}).identify(&in)
		if !in.https || !in.forwardedValid {
			t.Errorf("the last element of %q is not decisive", extended)
		}
	})
}

// FuzzForwardedFields compares both paths: a request with the same fields has the same scheme and gets the same fields of this hop, whether
// the peer is trusted or not. No field of an untrusted client remains.
func FuzzForwardedFields(f *testing.F) {
	for _, seed := range [][5]string{
		{"app", "for=192.0.2.1;proto=https", "for=10.0.0.2", "https, http", "192.0.2.1"},
		{"app:80", "for=a b", "", "WSS", ""}, {`a"b`, "", "", "", ", "}, {"", `for="[::1]:80";proto=http`, "proto=https", "ftp", "a,b"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4], true)
		f.Add(seed[0], seed[1], seed[2], seed[3], seed[4], false)
	}
	c := &chain{options: &Options{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
	f.Fuzz(func(t *testing.T, host, first, second, proto, client string, trusted bool) {
		peer := netip.MustParseAddrPort("192.0.2.9:1")
		if trusted {
			peer = netip.MustParseAddrPort("10.0.0.1:1")
		}
		head, header := &http1.Head{Host: []byte(host)}, http.Header{}
		for _, field := range [][2]string{{forwardedField, first}, {forwardedField, second}, {forwardedProtoField, proto}, {forwardedForField, client}, {forwardedHostField, client}} {
			// In the form that both parsers pass.
			value := strings.Trim(field[1], " \t")
			if strings.ContainsFunc(value+host, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
				t.Skip("both parsers reject control characters")
			}
			head.Fields = append(head.Fields, http1.Field{Name: []byte(field[0]), Value: []byte(value)})
			header.Add(field[0], value)
		}
		fast, standard := inbound{peer: peer, head: head, tls: true}, inbound{peer: peer, request: &http.Request{Host: host, Header: header}, tls: true}
		c.identify(&fast)
		c.identify(&standard)
		if fast.https != standard.https || fast.trusted != trusted || standard.trusted != trusted || fast.forwardedValid != standard.forwardedValid {
			t.Fatalf("https %v, %v, trusted %v, %v, valid %v, %v", fast.https, standard.https, fast.trusted, standard.trusted, fast.forwardedValid, standard.forwardedValid)
		}
		sent := http.Header{}
		standard.setForwardedFields(sent)
		for line := range strings.SplitSeq(string(fast.appendForwardedFields(nil)), "\r\n") {
			name, value, _ := strings.Cut(line, ": ")
			if got := sent.Values(name); len(got) != 1 || got[0] != value {
				t.Errorf("%s is %q on the standard path, %q on the fast path", name, got, value)
			}
		}
		if trusted {
			return
		}
		own := string(appendForwarded(nil, peer.Addr(), host, true))
		if !standard.https || sent.Get(forwardedForField) != "192.0.2.9" || sent.Get(forwardedHostField) != host || sent.Get(forwardedField) != own {
			t.Errorf("fields of an untrusted peer remain: %v", sent)
		}
	})
}
