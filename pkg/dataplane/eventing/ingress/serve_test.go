package ingress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// pipes is a listener of in-memory connections for tests under synctest.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// TestSlowClients checks that clients that pause or send too slowly are answered 408.
func TestSlowClients(t *testing.T) {
	const head = "POST /default/orders HTTP/1.1\r\nHost: x\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\n"
	for name, test := range map[string]struct {
		head string
		// then is sent every interval.
		then     string
		interval time.Duration
		code     int
		after    time.Duration
	}{
		"stops":              {head + "Content-Length: 5\r\n\r\nab", "", time.Hour, 408, 10 * time.Second},
		"stops, chunked":     {head + "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "", time.Hour, 408, 10 * time.Second},
		"sends byte by byte": {head + "Content-Length: 1000\r\n\r\n", "x", 7 * time.Second, 408, 30 * time.Second},
		"ends in time":       {head + "Content-Length: 3\r\n\r\n", "x", 9 * time.Second, 202, 27 * time.Second},
		"too large, stops":   {head + "Content-Length: 10000000\r\n\r\nab", "", time.Hour, 413, 10 * time.Second},
		"far too large":      {head + "Content-Length: 100000000\r\n\r\nab", "", time.Hour, 413, 0},
		"unknown, stops":     {strings.Replace(head, "orders", "unknown", 1) + "Content-Length: 5\r\n\r\nab", "", time.Hour, 404, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				listener, served := newPipes(), make(chan error)
				go func() { served <- New(options(&memory{})).Serve(ctx, listener, time.Second) }()
				conn := listener.dial()
				start := time.Now()
				go func() {
					if _, err := io.WriteString(conn, test.head); err != nil {
						return
					}
					for {
						select {
						case <-time.After(test.interval):
						case <-ctx.Done():
							return
						}
						if _, err := io.WriteString(conn, test.then); err != nil {
							return
						}
					}
				}()
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if took := time.Since(start); res.StatusCode != test.code || took != test.after {
					t.Errorf("got %d after %s, want %d after %s", res.StatusCode, took, test.code, test.after)
				}
				if test.code == 413 && !res.Close {
					t.Error("the connection stays open")
				}
				conn.Close()
				stop()
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestLongAcceptance checks that the time limit of a body does not apply to making its event durable.
func TestLongAcceptance(t *testing.T) {
	for _, body := range []string{"", "x"} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			o := options(&memory{})
			o.Accept = func(ctx context.Context, _ eventing.Key, _ []*event.Event) error {
				select {
				case <-time.After(time.Minute):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			listener, served := newPipes(), make(chan error)
			go func() { served <- New(o).Serve(ctx, listener, time.Second) }()
			conn := listener.dial()
			r := request(t, "http://x/default/orders", strings.NewReader(body))
			go func() { r.Write(conn) }() //nolint:errcheck // the response shows a failure
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != 202 {
				t.Errorf("with body %q, got %d, want 202", body, res.StatusCode)
			}
			conn.Close()
			stop()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}

// serve serves a handler on a free port. stop stops it and returns the error of Serve.
func serve(t *testing.T, o Options, stopTimeout time.Duration) (address string, stop func() error) {
	t.Helper()
	return serveHandler(t, New(o), stopTimeout)
}

func serveHandler(t *testing.T, h *Handler, stopTimeout time.Duration) (address string, stop func() error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, listener, stopTimeout) }()
	return "http://" + listener.Addr().String(), func() error {
		cancel()
		return <-served
	}
}

// TestServe checks HTTP/1.1 and HTTP/2 without TLS, and the maximum size of headers.
func TestServe(t *testing.T) {
	l := &memory{}
	address, stop := serve(t, options(l), time.Second)
	h2c := &http.Transport{Protocols: new(http.Protocols)}
	h2c.Protocols.SetUnencryptedHTTP2(true)
	defer h2c.CloseIdleConnections()
	for name, transport := range map[string]http.RoundTripper{"HTTP/1.1": http.DefaultTransport, "HTTP/2.0": h2c} {
		t.Run(name, func(t *testing.T) {
			for _, test := range []struct {
				body io.Reader
				ext  string
				code int
			}{
				{strings.NewReader("x"), "", 202},
				{io.MultiReader(strings.NewReader("x")), "", 202},
				{strings.NewReader(strings.Repeat("x", 10<<20)), "", 413},
				{nil, strings.Repeat("x", 100<<10), 431},
			} {
				res, err := transport.RoundTrip(request(t, address+"/default/orders", test.body, "ce-ext", test.ext))
				if err != nil {
					// An HTTP/2 client learns the limit from the server, and does not send larger headers.
					if name == "HTTP/2.0" && test.code == 431 {
						continue
					}
					t.Fatal(err)
				}
				res.Body.Close()
				if res.StatusCode != test.code || res.Proto != name {
					t.Errorf("got %d by %s, want %d", res.StatusCode, res.Proto, test.code)
				}
			}
		})
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestStop checks that requests in flight are drained when the server stops, up to the timeout.
func TestStop(t *testing.T) {
	for name, test := range map[string]struct {
		stopTimeout time.Duration
		answered    bool
	}{
		"in time":  {time.Minute, true},
		"too long": {time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			accepting, proceed := make(chan struct{}), make(chan struct{})
			o := options(&memory{})
			o.Accept = func(ctx context.Context, _ eventing.Key, _ []*event.Event) error {
				close(accepting)
				select {
				case <-proceed:
				case <-ctx.Done():
				}
				return nil
			}
			address, stop := serve(t, o, test.stopTimeout)
			answered := make(chan error, 1)
			r := request(t, address+"/default/orders", nil)
			go func() {
				res, err := http.DefaultClient.Do(r)
				if err == nil {
					res.Body.Close()
				}
				answered <- err
			}()
			<-accepting
			stopped := make(chan error, 1)
			go func() { stopped <- stop() }()
			if test.answered {
				// New connections are refused before the request is answered.
				var dialer net.Dialer
				for {
					conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(address, "http://"))
					if err != nil {
						break
					}
					conn.Close()
				}
				close(proceed)
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
			if err := <-answered; (err == nil) != test.answered {
				t.Errorf("the request ended with %v", err)
			}
		})
	}
}

// TestRetire checks that connections are closed after their next response, not earlier: the outcome of an event is unknown to the
// client if its connection closes first.
func TestRetire(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			handler := New(options(&memory{}))
			address, stop := serveHandler(t, handler, time.Minute)
			protocols := new(http.Protocols)
			protocols.SetHTTP1(!http2)
			protocols.SetUnencryptedHTTP2(http2)
			transport := &http.Transport{Protocols: protocols}
			defer transport.CloseIdleConnections()
			conns := map[string]bool{}
			trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { conns[info.Conn.LocalAddr().String()] = true }}
			for i, want := range []int{1, 1, 1, 2, 3} {
				if i == 2 {
					handler.Retire()
				}
				r := request(t, address+"/default/orders", nil)
				res, err := transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusAccepted {
					t.Errorf("request %d is answered %s, %v", i, res.Status, err)
				}
				res.Body.Close()
				if len(conns) != want {
					t.Errorf("%d connections after request %d, want %d", len(conns), i, want)
				}
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestListenerFails checks that Serve returns the error of the listener.
func TestListenerFails(t *testing.T) {
	listener := newPipes()
	listener.Close()
	if err := New(options(&memory{})).Serve(t.Context(), listener, time.Second); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}

// TestConnectionsOfOneClient checks that one client cannot use all connections.
func TestConnectionsOfOneClient(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(options(&memory{})).Serve(ctx, flow.LimitListener(listener, 8), time.Second) }()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	// The third connection is closed.
	for i, served := range []bool{true, true, false} {
		conn := dial()
		_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		if (err == nil) != served {
			t.Errorf("connection %d: %v, served must be %v", i, err, served)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
