package serving

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestPipelinedRequests sends ten requests before it reads the first response. The responses arrive in order; each request is
// routed on its own (serving 8-1).
func TestPipelinedRequests(t *testing.T) {
	t.Parallel()
	const requests = 10
	s := shared.newSite(t, "pipelined", instances("1"))
	other := shared.newSite(t, "pipelined-other", instances("1"), env("TARGET", "other"))
	w := s.mustDial(t)
	var all strings.Builder
	for range requests {
		all.WriteString(get(s.host, "/count"))
		all.WriteString(get(other.host, "/"))
		all.WriteString("POST /upload HTTP/1.1\r\nHost: " + s.host + "\r\nContent-Length: 4\r\n\r\nbody")
	}
	if _, err := io.WriteString(w, all.String()); err != nil {
		t.Fatal(err)
	}
	read := func(method string) *answer {
		a, err := w.read(method)
		if err != nil || a.code != http.StatusOK {
			t.Fatalf("a pipelined request got %+v, %v", a, err)
		}
		return a
	}
	for i := range requests {
		if got, want := decoded[countReport](t, read(http.MethodGet).body).Total, int64(2*i+1); got != want {
			t.Errorf("answer %d belongs to request %d", want, got)
		}
		if a := read(http.MethodGet); a.body != "Hello other!\n" {
			t.Errorf("a request for another host got %q", a.body)
		}
		if got := decoded[uploadReport](t, read(http.MethodPost).body).Bytes; got != 4 {
			t.Errorf("a body of 4 bytes arrived as %d", got)
		}
	}
}

// TestHead checks that the response to HEAD has the headers of the response to GET, and no body that the client would parse as
// the next response.
func TestHead(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "head", instances("1"))
	w := s.mustDial(t)
	for range 3 {
		a, err := w.exchange(http.MethodHead, "HEAD / HTTP/1.1\r\nHost: "+s.host+"\r\n\r\n")
		if err != nil || a.code != http.StatusOK || a.body != "" {
			t.Fatalf("HEAD got %+v, %v, want 200 without a body", a, err)
		}
		if got, want := a.header.Get("Content-Length"), fmt.Sprint(len("Hello World!\n")); got != want {
			t.Errorf("HEAD got Content-Length %q, want %s", got, want)
		}
	}
	a, err := w.exchange(http.MethodGet, get(s.host, "/"))
	if err != nil || a.body != "Hello World!\n" {
		t.Errorf("GET after HEAD got %+v, %v", a, err)
	}
	if a, err = w.exchange(http.MethodHead, "HEAD / HTTP/1.1\r\nHost: unknown.localhost\r\n\r\n"); err != nil || a.code != http.StatusNotFound || a.body != "" {
		t.Errorf("HEAD of an unknown host got %+v, %v, want 404 without a body", a, err)
	}
	h2, err := ask(t.Context(), s.h2(t), http.MethodHead, s.url+"/", nil)
	if err != nil || h2.code != http.StatusOK || h2.body != "" {
		t.Errorf("HEAD by HTTP/2 got %+v, %v", h2, err)
	}
}

// TestHTTP10 covers HTTP/1.0 clients, whose connections close after the response unless they request otherwise.
func TestHTTP10(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "old", instances("1"))
	w := s.mustDial(t)
	a, err := w.exchange(http.MethodGet, "GET /stream?n=3 HTTP/1.0\r\nHost: "+s.host+"\r\n\r\n")
	if err != nil || a.code != http.StatusOK || a.body != "chunk 0\nchunk 1\nchunk 2\n" {
		t.Errorf("an HTTP/1.0 request got %+v, %v", a, err)
	}
	if n, err := w.Read(make([]byte, 1)); err == nil {
		t.Errorf("after the response to HTTP/1.0 %d more bytes arrived, want the end of the connection", n)
	}
	w = s.mustDial(t)
	for range 2 {
		a, err := w.exchange(http.MethodGet, "GET / HTTP/1.0\r\nHost: "+s.host+"\r\nConnection: keep-alive\r\n\r\n")
		if err != nil || a.code != http.StatusOK || a.body != "Hello World!\n" {
			t.Errorf("an HTTP/1.0 request on a connection that is kept got %+v, %v", a, err)
		}
	}
	a, err = s.mustDial(t).exchange(http.MethodGet, "GET / HTTP/1.0\r\n\r\n")
	if err != nil || a.code != http.StatusNotFound && a.code != http.StatusBadRequest {
		t.Errorf("an HTTP/1.0 request without a host got %+v, %v, want a rejection", a, err)
	}
}

// TestExpectContinue checks that a client that waits for 100 Continue receives it before it sends the body, and receives the
// final response instead if the request is rejected.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "expect", instances("1"))
	head := func(host string) string {
		return "POST /upload HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
	}
	w := s.mustDial(t)
	for range 2 {
		if _, err := io.WriteString(w, head(s.host)); err != nil {
			t.Fatal(err)
		}
		line, err := w.in.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
			t.Fatalf("before the body was sent %q arrived (%v), want 100", line, err)
		}
		for line != "\r\n" {
			if line, err = w.in.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		a, err := w.exchange(http.MethodPost, "body")
		if err != nil || a.code != http.StatusOK || decoded[uploadReport](t, a.body).Bytes != 4 {
			t.Fatalf("the request got %+v, %v", a, err)
		}
	}
	a, err := s.mustDial(t).exchange(http.MethodPost, head("unknown.localhost"))
	if err != nil || a.code != http.StatusNotFound {
		t.Errorf("a request for an unknown host that waits for 100 got %+v, %v, want 404", a, err)
	}
}
