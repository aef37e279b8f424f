package http1

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// fakeConn is a connection that records whether it was closed.
type fakeConn struct {
	net.Conn
	closed atomic.Bool
}

func (c *fakeConn) Close() error {
	c.closed.Store(true)
	return nil
}

// TestIdleConnections expects the most recently used connection to be reused, and idle connections to be closed after idleTime, with
// and without requests.
func TestIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := NewUpstream("")
		var conns [3]*fakeConn
		for i := range conns {
			conns[i] = &fakeConn{}
			u.put(&upstreamConn{conn: conns[i]}, time.Now())
			<-time.After(time.Second)
		}
		last := u.get()
		if last.conn != conns[2] || !last.reused {
			t.Errorf("got %v", last)
		}
		<-time.After(idleTime - 2500*time.Millisecond)
		if closed := [...]bool{conns[0].closed.Load(), conns[1].closed.Load()}; closed != [...]bool{true, false} {
			t.Errorf("closed %v", closed)
		}
		u.put(last, time.Now())
		<-time.After(time.Second)
		if !conns[1].closed.Load() || conns[2].closed.Load() {
			t.Error("the most recently used connection is closed, or the one before it is open")
		}
		<-time.After(idleTime)
		if !conns[2].closed.Load() || u.get() != nil {
			t.Error("a connection is still idle")
		}
		// The sweeper is scheduled again for the next idle connection.
		later := &fakeConn{}
		u.put(&upstreamConn{conn: later}, time.Now())
		<-time.After(idleTime + time.Second)
		if !later.closed.Load() {
			t.Error("a connection that became idle later is still open")
		}
	})
}

// TestMaxIdle expects the number of idle connections to be bounded, and none to be kept after Close.
func TestMaxIdle(t *testing.T) {
	u := NewUpstream("a:1")
	for range maxIdle {
		u.put(&upstreamConn{conn: &fakeConn{}}, time.Now())
	}
	more := &fakeConn{}
	u.put(&upstreamConn{conn: more}, time.Now())
	if !more.closed.Load() || len(u.idle) != maxIdle {
		t.Errorf("%d connections, closed %v", len(u.idle), more.closed.Load())
	}
	last := u.get()
	u.Close()
	u.put(last, time.Now())
	if u.get() != nil || !last.conn.(*fakeConn).closed.Load() {
		t.Error("a connection is kept after Close")
	}
}

// TestReuse expects sequential requests to share a connection to the backend.
func TestReuse(t *testing.T) {
	var connections atomic.Int32
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		connections.Add(1)
		for {
			if _, err := readHead(r); err != nil {
				return
			}
			trySend(conn, hi)
		}
	})
	router := newFakeRouter(app)
	addr := serve(t, &Server{Handler: router})
	for range 3 {
		conn := dial(t, addr)
		for range 3 {
			write(t, conn, getA)
			expect(t, conn, hi)
			if r := router.result(t); r.Err != nil || r.ResponseBytes != 2 {
				t.Errorf("result %+v", r)
			}
		}
	}
	// One may have been idle for too long.
	if n := connections.Load(); n > 2 {
		t.Errorf("%d connections", n)
	}
}

// TestClosedBetweenRequests expects no request to fail if the backend closes its connection after each response without announcing
// it.
func TestClosedBetweenRequests(t *testing.T) {
	closed := make(chan struct{})
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		if _, err := readHead(r); err == nil {
			trySend(conn, hi)
			conn.Close()
			closed <- struct{}{}
		}
	})
	conn := dial(t, serve(t, &Server{Handler: newFakeRouter(app)}))
	for range 20 {
		write(t, conn, getA)
		expect(t, conn, hi)
		<-closed
	}
}

// TestSurplusBetweenRequests expects no request to get a response that the backend sent without a request.
func TestSurplusBetweenRequests(t *testing.T) {
	sent := make(chan struct{})
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		if _, err := readHead(r); err != nil {
			return
		}
		trySend(conn, hi)
		<-sent
		trySend(conn, strings.Replace(hi, "hi", "no", 1))
		sent <- struct{}{}
	})
	conn := dial(t, serve(t, &Server{Handler: newFakeRouter(app)}))
	for range 3 {
		write(t, conn, getA)
		expect(t, conn, hi)
		sent <- struct{}{}
		<-sent
	}
}

// TestSentOnce expects a request not to be repeated if the backend closes its connection after reading it, on a new connection and
// on a reused one.
func TestSentOnce(t *testing.T) {
	for _, first := range []string{"", hi} {
		var requests atomic.Int32
		app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
			for {
				if _, err := readHead(r); err != nil {
					return
				}
				if requests.Add(1) > 1 || first == "" {
					return
				}
				trySend(conn, first)
			}
		})
		router := newFakeRouter(app)
		conn := dial(t, serve(t, &Server{Handler: router}))
		if first != "" {
			write(t, conn, getA)
			expect(t, conn, first)
			router.result(t)
		}
		before := requests.Load()
		write(t, conn, getA)
		expect(t, conn, refused("502 Bad Gateway", serving.BrokenOff.Body, false))
		if r := router.result(t); r.Status != 502 || !errors.Is(r.Err, io.ErrUnexpectedEOF) {
			t.Errorf("result %+v", r)
		}
		if n := requests.Load() - before; n != 1 {
			t.Errorf("the backend got the request %d times", n)
		}
	}
}

// TestUpstreamClose expects no connection to be kept to a backend that is removed.
func TestUpstreamClose(t *testing.T) {
	ended := make(chan struct{})
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		skipHead(r)
		trySend(conn, hi)
		untilClosed(r)
		ended <- struct{}{}
	})
	router := newFakeRouter(app)
	conn := dial(t, serve(t, &Server{Handler: router}))
	write(t, conn, getA)
	expect(t, conn, hi)
	router.result(t)
	router.upstream.Close()
	<-ended
	write(t, conn, getA)
	expect(t, conn, hi)
	<-ended
}
