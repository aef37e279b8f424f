package sender

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// order returns an event of JSON data.
func order() *event.Event {
	return &event.Event{
		Attributes: []event.Attribute{
			{Name: event.ID, Value: "1"}, {Name: event.Source, Value: "/shop"}, {Name: event.EventType, Value: "order.placed"},
			{Name: event.DataContentType, Value: "application/json"}, {Name: "region", Value: "eu"},
		},
		Data: []byte(`{ "amount": 1.50 }`),
	}
}

// newSender returns a sender that ends with the test.
func newSender(t testing.TB, o Options) *Sender {
	if o.Discloses == nil {
		o.Discloses = func(context.Context, string, string) bool { return true }
	}
	s := New(o)
	t.Cleanup(s.Close)
	return s
}

// serve returns an endpoint with a handler.
func serve(t testing.TB, handler http.HandlerFunc) eventing.Endpoint {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return eventing.Endpoint{URL: server.URL}
}

// serveRaw returns an endpoint that calls write to answer each request after its header, and then closes the connection.
func serveRaw(t testing.TB, write func(io.Writer)) eventing.Endpoint {
	t.Helper()
	return eventing.Endpoint{URL: "http://" + serveConnections(t, func(conn net.Conn) {
		if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
			io.Copy(io.Discard, r.Body) //nolint:errcheck // the sender may be gone
			write(conn)
		}
	})}
}

// serveConnections returns the address of a listener. Each connection is closed when handle returns.
func serveConnections(t testing.TB, handle func(net.Conn)) string {
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
			go func() {
				defer conn.Close()
				handle(conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// TestRequest covers eventing Minimum supported protocol-1, eventing HTTP Verbs-1 and -2 and eventing Derived (Reply)
// Events-4: the requests to recipients.
func TestRequest(t *testing.T) {
	structured := order()
	structured.Structured = true
	traced := order()
	traced.Headers = []event.Header{{Name: "traceparent", Value: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		{Name: "x-request-id", Value: "7"}, {Name: "knative-a", Value: "b"}, {Name: "knative-a", Value: "c"}}
	empty := order()
	empty.Data = nil
	for _, tt := range []struct {
		name       string
		event      *event.Event
		attempt    Attempt
		structured bool
		header     http.Header
	}{
		{"binary, as it arrived", order(), Attempt{}, false, http.Header{
			"Ce-Id": {"1"}, "Ce-Source": {"/shop"}, "Ce-Type": {"order.placed"}, "Ce-Specversion": {"1.0"}, "Ce-Region": {"eu"},
			"Content-Type": {"application/json"}, "Content-Length": {"18"}, "User-Agent": {"knative-apiserver"},
			"Prefer": nil, "Kn-Namespace": nil, "Accept-Encoding": nil}},
		{"structured, as it arrived", structured, Attempt{}, true, http.Header{"Content-Type": {"application/cloudevents+json"}, "Ce-Id": nil}},
		{"binary made structured", order(), Attempt{Format: eventing.FormatJSON}, true, nil},
		{"structured made binary", structured, Attempt{Format: eventing.FormatBinary}, false, http.Header{"Ce-Id": {"1"}, "Content-Type": {"application/json"}}},
		{"reply expected", order(), Attempt{ExpectReply: true}, false, http.Header{"Prefer": {"reply"}}},
		{"namespace", order(), Attempt{Namespace: "shop"}, false, http.Header{"Kn-Namespace": {"shop"}}},
		{"headers that travel with the event", traced, Attempt{}, false, http.Header{
			"Traceparent": {traced.Headers[0].Value}, "X-Request-Id": {"7"}, "Knative-A": {"b", "c"}}},
		{"headers in structured mode", traced, Attempt{Format: eventing.FormatJSON}, true, http.Header{"X-Request-Id": {"7"}}},
		{"without data", empty, Attempt{}, false, http.Header{"Content-Length": {"0"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got *http.Request
			var body []byte
			to := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				got = r
				body, _ = io.ReadAll(r.Body)
				r.Header.Set("Content-Length", fmt.Sprint(r.ContentLength))
			})
			to.URL += "/a%2Fb?c=d"
			if result := newSender(t, Options{}).Send(t.Context(), tt.event, to, tt.attempt); result.Err != nil || result.Code != 200 {
				t.Fatalf("code %d, error %v", result.Code, result.Err)
			}
			if got.Method != http.MethodPost || got.RequestURI != "/a%2Fb?c=d" {
				t.Errorf("got %s %s", got.Method, got.RequestURI)
			}
			for name, want := range tt.header {
				if diff := cmp.Diff(want, got.Header[name]); diff != "" {
					t.Errorf("header %s: (-want +got)\n%s", name, diff)
				}
			}
			if !tt.structured {
				if string(body) != string(tt.event.Data) {
					t.Errorf("body %q, want %q", body, tt.event.Data)
				}
				return
			}
			var object struct {
				ID, Region string
				Data       json.RawMessage
			}
			if err := json.Unmarshal(body, &object); err != nil || object.ID != "1" || object.Region != "eu" || string(object.Data) != string(tt.event.Data) {
				t.Errorf("body %s, error %v", body, err)
			}
		})
	}
}

// TestCredentials checks that the credentials of a URL reach the recipient, but no visible text.
func TestCredentials(t *testing.T) {
	var user, password string
	to := serve(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ = r.BasicAuth()
		w.WriteHeader(http.StatusForbidden)
	})
	host := strings.TrimPrefix(to.URL, "http://")
	to.URL = "http://me:secret@" + host + "/a?token=secret"
	result := newSender(t, Options{}).Send(t.Context(), order(), to, Attempt{})
	if user != "me" || password != "secret" {
		t.Errorf("the recipient got %q and %q", user, password)
	}
	if want := "POST http://" + host + "/a: 403 Forbidden"; result.Err == nil || result.Err.Error() != want {
		t.Errorf("error %v, want %s", result.Err, want)
	}
	for _, address := range []string{"http://me:secret@host:port/", "http://me:secret@host/%zz", "ftp://me:secret@host/"} {
		if result := newSender(t, Options{}).Send(t.Context(), order(), eventing.Endpoint{URL: address}, Attempt{}); result.Err == nil ||
			strings.Contains(result.Err.Error(), "secret") || !result.Retryable {
			t.Errorf("%s: retryable %v, error %v", address, result.Retryable, result.Err)
		}
	}
}

// TestConnections checks that connections are reused, also after errors and replies.
func TestConnections(t *testing.T) {
	var connections atomic.Int32
	var step atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck // seen by the status
		switch step.Add(1) % 4 {
		case 0:
			http.Error(w, strings.Repeat("e", 10_000), http.StatusServiceUnavailable)
		case 1:
			w.WriteHeader(http.StatusAccepted)
		case 2:
			order().WriteBinary(w.Header())
			w.Write([]byte("{}")) //nolint:errcheck // seen by the status
		case 3:
			w.WriteHeader(http.StatusCreated)
			w.(http.Flusher).Flush()
			w.Write([]byte("chunked")) //nolint:errcheck // seen by the status
		}
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	s := newSender(t, Options{})
	for range 40 {
		s.Send(t.Context(), order(), eventing.Endpoint{URL: server.URL}, Attempt{ExpectReply: true})
	}
	// A pause of this process may end an idle connection or the drain of a body. An answer that prevents reuse takes ten connections.
	if n := connections.Load(); n > 5 {
		t.Errorf("%d connections for requests one after the other", n)
	}
}

// TestClosedConnections covers a recipient that closes connections after each answer without announcing it. No event is sent over a closed one.
func TestClosedConnections(t *testing.T) {
	closed := make(chan struct{}, 1)
	to := serveRaw(t, func(w io.Writer) {
		fmt.Fprint(w, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
		w.(net.Conn).Close()
		closed <- struct{}{}
	})
	s := newSender(t, Options{})
	for i := range 300 {
		if result := s.Send(t.Context(), order(), to, Attempt{}); result.Err != nil {
			t.Fatalf("event %d: %v", i, result.Err)
		}
		<-closed
	}
}

// TestLocalNames covers names that resolvers do not resolve (RFC 6761, 6.3).
func TestLocalNames(t *testing.T) {
	to := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusAccepted)
	})
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(to.URL, "http://"))
	s := newSender(t, Options{})
	for _, host := range []string{"localhost", "sink.default.localhost", "SINK.Default.LOCALHOST", "sink.localhost."} {
		if result := s.Send(t.Context(), order(), eventing.Endpoint{URL: "http://" + host + ":" + port}, Attempt{}); result.Code != http.StatusAccepted {
			t.Errorf("%s: %v", host, result.Err)
		}
	}

	var dialled []string
	s = newSender(t, Options{Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		return nil, &net.DNSError{Err: "no such host", Name: address, IsNotFound: true}
	}})
	for _, host := range []string{"a.localhost:81", "localhost.example.com", "notlocalhost", "[fd00::1]", "[fd00::1]:81", "bücher.example:"} {
		if result := s.Send(t.Context(), order(), eventing.Endpoint{URL: "http://" + host}, Attempt{}); result.Code != 0 || !result.Retryable ||
			result.Err == nil || !strings.Contains(result.Err.Error(), "no such host") {
			t.Errorf("%s: %+v", host, result)
		}
	}
	if diff := cmp.Diff([]string{"127.0.0.1:81", "[::1]:81", "localhost.example.com:80", "notlocalhost:80", "[fd00::1]:80", "[fd00::1]:81", "xn--bcher-kva.example:80"}, dialled); diff != "" {
		t.Errorf("dialled: (-want +got)\n%s", diff)
	}
}

func BenchmarkSend(b *testing.B) {
	to := serve(b, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) })
	e := order()
	e.Data = []byte(strings.Repeat("x", 1024))
	s := newSender(b, Options{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if result := s.Send(b.Context(), e, to, Attempt{ExpectReply: true}); result.Err != nil {
				b.Error(result.Err)
			}
		}
	})
}
