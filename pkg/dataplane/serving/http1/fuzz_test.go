package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/textproto"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzParseHead expects that net/http accepts all heads that this package accepts, and parses them to the same request: as received
// and as forwarded.
func FuzzParseHead(f *testing.F) {
	for _, seed := range []string{
		getA,
		"GET /a?b=c HTTP/1.1\r\nHost: a.example:80\r\nX-A: b\r\nx-a:  c \r\nConnection: close, x-b\r\nX-B: d\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 0\r\nCookie: a=b; c=\"d\"\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTrailer: a\r\n\r\n",
		"POST //%41 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
		"GET http://b/ HTTP/1.1\r\nHost: a\r\nUpgrade: a\r\n\r\n",
		"GET / HTTP/1.0\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nA : b\r\nContent-Length: +1\r\n\r\n", "GET / HTTP/1.1\nHost: a\n\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		size, refusal := headSize(b, 0)
		if split, _ := headSize(b[:len(b)/2], 0); refusal == nil && split == 0 && len(b) > 0 {
			if inSteps, refusal := headSize(b, len(b)/2); inSteps != size || refusal != nil {
				t.Fatalf("size %d at once, %d in two steps, %v", size, inSteps, refusal)
			}
		}
		if size == 0 {
			return
		}
		head := append([]byte(nil), b[:size]...)
		var r request
		if refusal := r.parse(head); refusal != nil || r.standard {
			return
		}
		want := map[string][]string{}
		for _, field := range r.Fields {
			if name := textproto.CanonicalMIMEHeaderKey(string(field.Name)); name != "Host" {
				want[name] = append(want[name], string(field.Value))
			}
		}
		same(t, &r, b[:size], want)
		for name := range want {
			switch lower := strings.ToLower(name); lower {
			case "content-length":
			case "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer":
				delete(want, name)
			default:
				if named(r.options, []byte(lower)) {
					delete(want, name)
				}
			}
		}
		if r.length >= 0 {
			want["Content-Length"] = []string{string(trim(r.Get("content-length")))}
		}
		r.close = false
		same(t, &r, r.appendTo(nil, &openExchange{}), want)
	})
}

// same compares the request that net/http parses from a head with r, and its fields with want.
func same(t *testing.T, r *request, head []byte, want map[string][]string) {
	t.Helper()
	reader := bufio.NewReader(io.MultiReader(bytes.NewReader(head), zeros{}))
	req, err := http.ReadRequest(reader)
	if err != nil {
		t.Fatalf("net/http rejects %q: %v", head, err)
	}
	got := []any{req.Method, req.RequestURI, req.Host, req.ContentLength, req.Close, req.Proto}
	if diff := cmp.Diff([]any{string(r.Method), string(r.Target), string(r.Host), max(r.length, 0), r.close, "HTTP/1.1"}, got); diff != "" {
		t.Errorf("%q (-here +net/http):\n%s", head, diff)
	}
	fields := map[string][]string(req.Header)
	delete(fields, "X-Forwarded-Proto")
	delete(want, "X-Forwarded-Proto")
	if _, pragma := want["Pragma"]; pragma {
		// net/http derives a Cache-Control field from it.
		delete(fields, "Cache-Control")
		delete(want, "Cache-Control")
	}
	for _, values := range [2]map[string][]string{fields, want} {
		if length, ok := values["Content-Length"]; ok {
			values["Content-Length"] = []string{strings.TrimLeft(length[0], "0")}
		}
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("%q (-here +net/http):\n%s", head, diff)
	}
}

// FuzzParseResponse expects that net/http parses the forwarded response to the same response as the received one.
func FuzzParseResponse(f *testing.F) {
	for _, seed := range []string{
		hi, "HTTP/1.1 404 Not Found\r\nA: b\r\nConnection: c\r\nC: d\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/1.0 204\r\nContent-Length: 1\r\n\r\n", "HTTP/1.1 304 \r\nEtag: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
	} {
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, b []byte, head bool) {
		size, refusal := headSize(b, 0)
		var r response
		if size == 0 || refusal != nil || r.parse(b[:size], head) != nil || r.status < 200 {
			return
		}
		req := &http.Request{Method: "GET"}
		if head {
			req.Method = "HEAD"
		}
		read := func(b []byte) *http.Response {
			resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(b), zeros{})), req)
			if err != nil {
				t.Fatalf("net/http rejects %q: %v", b, err)
			}
			return resp
		}
		sent := read(b[:size])
		defer sent.Body.Close()
		passed := read(r.appendTo(nil, false))
		defer passed.Body.Close()
		length := sent.ContentLength
		if r.framing == byLength && passed.ContentLength != length || r.framing == noBody && passed.ContentLength > 0 && length != passed.ContentLength {
			t.Errorf("%q: length %d becomes %d", b, length, passed.ContentLength)
		}
		if sent.StatusCode != passed.StatusCode || passed.Close || passed.Header.Get("Connection") != "" {
			t.Errorf("%q becomes %v", b, passed)
		}
	})
}
