package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// talk sends a request on a new connection and reads until the connection is closed.
func talk(t *testing.T, b *bench, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", b.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("%q ends with %v", all, err)
	}
	return string(all)
}

// rawApp replaces the backend by an application that answers each request with the same bytes and closes the connection.
func rawApp(t *testing.T, b *bench, answer string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				drain(r.Body)
				echo(conn, strings.NewReader(answer))
			}
			conn.Close()
		}
	}()
	b.SetInstances(key("r"), []workload.Instance{{Name: "raw", Address: listener.Addr().String()}})
}

// TestTimeoutInBody checks that a client that does not complete its body gets 504 in time, and that its connection is closed then
// (serving 8-1).
func TestTimeoutInBody(t *testing.T) {
	const short = 100 * time.Millisecond
	app := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { drain(r.Body) })
	for name, timeouts := range map[string]routing.Revision{
		"total": {Timeout: short}, "response start": {Timeout: time.Minute, ResponseStartTimeout: short}, "idle": {IdleTimeout: short},
	} {
		spec := revision(0)
		spec.Timeout, spec.ResponseStartTimeout, spec.IdleTimeout = timeouts.Timeout, timeouts.ResponseStartTimeout, timeouts.IdleTimeout
		b := serve(t, Options{}, spec, app)
		for _, body := range []string{"Content-Length: 10\r\n\r\nab", "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"} {
			got := talk(t, b, "POST / HTTP/1.1\r\nHost: app\r\n"+body)
			if !strings.HasPrefix(got, "HTTP/1.1 504 ") || !strings.HasSuffix(got, "\r\n\r\nrequest timeout\n") || !strings.Contains(got, "\r\nConnection: close\r\n") {
				t.Errorf("%s, %q: got %q, want 504 and the end", name, body, got)
			}
		}
		b.h2c()
		read, write := io.Pipe()
		go fmt.Fprint(write, "ab")
		res, got := b.do(t, b.request(t, http.MethodPost, read))
		write.Close()
		if res.StatusCode != http.StatusGatewayTimeout || got != "request timeout\n" {
			t.Errorf("%s, HTTP/2: got %s %q, want 504", name, res.Status, got)
		}
	}
}

// TestTimeoutWithoutBody covers the response of HTTP/2 when the backend does not respond.
func TestTimeoutWithoutBody(t *testing.T) {
	for _, protocol := range []routing.Protocol{routing.HTTP1, routing.H2C} {
		spec := revision(0)
		spec.Timeout, spec.Protocol = 100*time.Millisecond, protocol
		b := serve(t, Options{}, spec, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })).h2c()
		if res, got := b.do(t, b.request(t, http.MethodGet, nil)); res.StatusCode != http.StatusGatewayTimeout || got != "request timeout\n" {
			t.Errorf("%v: got %s %q, want 504", protocol, res.Status, got)
		}
	}
}

// TestRequestTrailers checks that the announced trailers of a request reach the backend, except fields that the gateway writes or
// removes (serving 8-2).
func TestRequestTrailers(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		fmt.Fprintf(w, "%s %s", r.Trailer.Get("X-T"), r.Trailer.Get("K-Proxy-Request"))
	})
	for _, protocol := range []routing.Protocol{routing.HTTP1, routing.H2C} {
		for _, http2 := range []bool{false, true} {
			spec := revision(0)
			spec.Protocol = protocol
			b := serve(t, Options{}, spec, app)
			if http2 {
				b.h2c()
			}
			r := b.request(t, http.MethodPost, streamed("hello"))
			r.Trailer = http.Header{"X-T": {"end"}, "K-Proxy-Request": {"x"}}
			if http2 {
				r.ContentLength = int64(len("hello"))
			}
			if res, got := b.do(t, r); got != "end " {
				t.Errorf("%v, HTTP/2 %v: %s, trailers %q", protocol, http2, res.Status, got)
			}
		}
	}
}

// TestInvalidStatus checks that an invalid status code becomes 502 on each path.
func TestInvalidStatus(t *testing.T) {
	onPaths(t, Options{}, http.NotFoundHandler(), func(t *testing.T, b *bench, send func() *http.Request) {
		spec := specOf(b.Gateway)
		spec.Protocol = routing.HTTP1
		b.SetRevision(&spec)
		rawApp(t, b, "HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n")
		if res, got := b.do(t, send()); res.StatusCode != http.StatusBadGateway || strings.TrimSpace(got) != serving.BadResponse.Body {
			t.Errorf("%s %q, want 502", res.Status, got)
		}
	})
}

// TestInterimAnswers checks that clients of HTTP/1.0 get no interim responses (RFC 9110 15.2), and others do.
func TestInterimAnswers(t *testing.T) {
	b := serve(t, Options{}, revision(0), http.NotFoundHandler())
	rawApp(t, b, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi")
	for request, answers := range map[string]int{
		"GET / HTTP/1.0\r\nHost: app\r\n\r\n": 1,
		"POST / HTTP/1.1\r\nHost: app\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 2,
	} {
		if got := talk(t, b, request); strings.Count(got, "HTTP/1.") != answers || !strings.HasSuffix(got, "\r\n\r\nhi") {
			t.Errorf("%q: got %q, want %d answers", request, got, answers)
		}
	}
}

// TestOneContinue checks that a client that waits for 100 Continue gets one, however many the backend sends (RFC 9110 10.1.1).
func TestOneContinue(t *testing.T) {
	b := serve(t, Options{}, revision(0), http.NotFoundHandler())
	proceed := strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 3)
	rawApp(t, b, proceed+"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi")
	got := talk(t, b, "POST / HTTP/1.1\r\nHost: app\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody")
	if strings.Count(got, "HTTP/1.1 100 ") != 1 || strings.Count(got, "HTTP/1.1 ") != 2 || !strings.HasSuffix(got, "\r\n\r\nhi") {
		t.Errorf("got %q, want one 100 and the response", got)
	}
}

// TestPropagatedFields covers fields that cannot be extended (W3C trace context, RFC 7239).
func TestPropagatedFields(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var got http.Header
	app := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		got = r.Header
	})
	onPaths(t, Options{}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		for name, test := range map[string]struct {
			parents []string
			state   string
		}{
			"valid": {[]string{parent}, "a=b"}, "invalid": {[]string{strings.ToUpper(parent)}, ""},
			"twice": {[]string{parent, parent}, ""}, "none": {nil, ""},
		} {
			r := send()
			r.Header["Traceparent"] = test.parents
			r.Header.Set("Tracestate", "a=b")
			b.do(t, r)
			want := map[string]string{"Tracestate": test.state}
			for field := range want {
				if diff := cmp.Diff(want[field], strings.Join(got.Values(field), "|")); diff != "" {
					t.Errorf("%s: %s (-want +got):\n%s", name, field, diff)
				}
			}
		}
	})
}

// TestMalformedAuthority checks that the application does not get the authority of a request of HTTP/2 unless it is a host name with a
// port, although its host name is the application's: applications use it in links.
func TestMalformedAuthority(t *testing.T) {
	b, _ := serveTLS(t, Options{}, headers)
	client := https(t, "app", true)
	for host, want := range map[string]int{"app": http.StatusOK, "app:443": http.StatusOK, "app:443,evil.example": http.StatusBadRequest, "app:;evil": http.StatusBadRequest} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+b.address, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%q: %s, want %d", host, res.Status, want)
		}
	}
}

// TestUnfit covers requests of HTTP/2 that would be malformed in HTTP/1.1 (RFC 9113 8.3.1).
func TestUnfit(t *testing.T) {
	g := New(Options{})
	for name, test := range map[string]struct {
		method, target, authority, host string
		want                            int
	}{
		"asterisk":  {http.MethodGet, "*", "app", "", http.StatusBadRequest},
		"options":   {http.MethodOptions, "*", "app", "", http.StatusNotFound},
		"hosts":     {http.MethodGet, "/", "app", "other", http.StatusBadRequest},
		"host":      {http.MethodGet, "/", "app", "APP", http.StatusNotFound},
		"connect":   {http.MethodConnect, "app:80", "app", "", http.StatusMethodNotAllowed},
		"port":      {http.MethodGet, "/", "app:80", "", http.StatusNotFound},
		"no host":   {http.MethodGet, "/", "", "", http.StatusNotFound},
		"userinfo":  {http.MethodGet, "/", "app:@evil.example", "", http.StatusBadRequest},
		"no port":   {http.MethodGet, "/", "app:80,evil.example", "", http.StatusBadRequest},
		"with path": {http.MethodGet, "/", "app:/evil", "", http.StatusBadRequest},
	} {
		r := httptest.NewRequest(test.method, "/", bytes.NewReader(nil))
		r.Host, r.RequestURI, r.ProtoMajor, r.ProtoMinor = test.authority, test.target, 2, 0
		if test.host != "" {
			r.Header.Set("Host", test.host)
		}
		w := httptest.NewRecorder()
		g.chain.serveHTTP(w, inbound{request: r})
		if w.Code != test.want {
			t.Errorf("%s: %d, want %d", name, w.Code, test.want)
		}
	}
}
