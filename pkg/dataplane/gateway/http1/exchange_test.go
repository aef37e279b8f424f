package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestUnreachable has instances that take no connection, until one does.
func TestUnreachable(t *testing.T) {
	gone := listen(t)
	gone.Close()
	router := newFakeRouter("")
	app, n := NewUpstream(answering(t, hi, nil)), 0
	router.acquire = func(context.Context) (*Upstream, *Refusal) {
		if n++; n < 4 {
			return NewUpstream(gone.Addr().String()), nil
		}
		return app, nil
	}
	conn := dial(t, serve(t, &Server{Router: router}))
	write(t, conn, getA)
	expect(t, conn, hi)
	if r := router.result(t); r.Err != nil || router.unreachable != 3 {
		t.Errorf("result %+v after %d attempts", r, router.unreachable)
	}
	// Without one that does, the total timeout ends it.
	n, router.total = -1000, 100*time.Millisecond
	write(t, conn, getA)
	expect(t, conn, refused("504 Gateway Timeout", "request timeout", false))
	if r := router.result(t); !errors.Is(r.Err, errTimeout) || r.Status != 504 {
		t.Errorf("result %+v", r)
	}
}

// TestAcquire expects what Acquire says to be done.
func TestAcquire(t *testing.T) {
	router := newFakeRouter("")
	router.acquire = func(context.Context) (*Upstream, *Refusal) { return nil, &Refusal{Status: 503, Body: "full"} }
	conn := dial(t, serve(t, &Server{Router: router}))
	write(t, conn, getA)
	expect(t, conn, refused("503 Service Unavailable", "full", false))
	if r := router.result(t); r.Status != 503 || r.Err != nil {
		t.Errorf("result %+v", r)
	}
	router.acquire = func(ctx context.Context) (*Upstream, *Refusal) { <-ctx.Done(); return nil, nil }
	router.total = 20 * time.Millisecond
	write(t, conn, getA)
	expect(t, conn, refused("504 Gateway Timeout", "request timeout", false))
	router.result(t)
	// What the client sends while its request waits is its next request.
	waits, found := make(chan struct{}), make(chan struct{})
	app := NewUpstream(answering(t, hi, nil))
	router.total = 0
	router.acquire = func(context.Context) (*Upstream, *Refusal) {
		waits <- struct{}{}
		<-found
		return app, nil
	}
	write(t, conn, getA)
	<-waits
	write(t, conn, getA+getA)
	for i := range 3 {
		if i > 0 {
			<-waits
		}
		found <- struct{}{}
		expect(t, conn, hi)
	}
}

// TestResultBytes expects bodies to be counted without their framing.
func TestResultBytes(t *testing.T) {
	for _, answer := range []string{hi, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a\r\nhi\r\n0\r\na: b\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nhi"} {
		app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
			skipHead(r)
			say(conn, answer)
		})
		router := newFakeRouter(app)
		write(t, dial(t, serve(t, &Server{Router: router})), "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
		if diff := cmp.Diff(Result{Status: 200, RequestBytes: 3, ResponseBytes: 2}, router.result(t)); diff != "" {
			t.Errorf("result of %q (-want +got):\n%s", answer, diff)
		}
	}
}

// TestTimeouts expects each of the three bounds to be kept, before and after the head of an answer.
func TestTimeouts(t *testing.T) {
	const bound = 80 * time.Millisecond
	head := "HTTP/1.1 200 OK\r\nDate: " + someDate + "\r\nContent-Length: 9\r\n\r\nab"
	for _, tc := range []struct {
		name, answer string
		set          func(*fakeRouter)
	}{
		{name: "total", set: func(r *fakeRouter) { r.total = bound }},
		{name: "response start", set: func(r *fakeRouter) { r.responseStart = bound }},
		{name: "idle", set: func(r *fakeRouter) { r.idle = bound }},
		{name: "short", set: func(r *fakeRouter) { r.total = 10 * time.Millisecond }},
		{name: "total within the answer", answer: head, set: func(r *fakeRouter) { r.total = bound }},
		{name: "idle within the answer", answer: head, set: func(r *fakeRouter) { r.idle = bound }},
		{name: "total within the head", answer: head[:20], set: func(r *fakeRouter) { r.total = bound }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ended := make(chan struct{})
			app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
				skipHead(r)
				say(conn, tc.answer)
				untilClosed(r)
				close(ended)
			})
			router := newFakeRouter(app)
			tc.set(router)
			conn := dial(t, serve(t, &Server{Router: router}))
			begin := time.Now()
			write(t, conn, getA)
			if tc.answer == head {
				expectEnd(t, conn, head)
			} else {
				expect(t, conn, refused("504 Gateway Timeout", "request timeout", false))
			}
			if took := time.Since(begin); took < 10*time.Millisecond || took > 2*time.Second {
				t.Errorf("took %v", took)
			}
			if r := router.result(t); !errors.Is(r.Err, errTimeout) {
				t.Errorf("result %+v", r)
			}
			<-ended
		})
	}
}

// TestResponseStartPasses expects the bound of the first byte not to hold for the others.
func TestResponseStartPasses(t *testing.T) {
	finish := make(chan struct{})
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		skipHead(r)
		say(conn, hi[:len(hi)-1])
		<-finish
		say(conn, hi[len(hi)-1:])
	})
	router := newFakeRouter(app)
	router.responseStart = 100 * time.Millisecond
	conn := dial(t, serve(t, &Server{Router: router}))
	write(t, conn, getA)
	expect(t, conn, hi[:len(hi)-1])
	time.AfterFunc(200*time.Millisecond, func() { close(finish) })
	expect(t, conn, hi[len(hi)-1:])
}

// TestStalledClient has a client that does not read what it asked for.
func TestStalledClient(t *testing.T) {
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		skipHead(r)
		say(conn, "HTTP/1.1 200 OK\r\n\r\n")
		_, _ = io.Copy(conn, zeros{})
	})
	for _, set := range []func(*fakeRouter){
		func(r *fakeRouter) { r.total = 200 * time.Millisecond },
		func(r *fakeRouter) { r.idle = 200 * time.Millisecond },
	} {
		router := newFakeRouter(app)
		set(router)
		conn := dial(t, serve(t, &Server{Router: router}))
		write(t, conn, getA)
		if r := router.result(t); !errors.Is(r.Err, errTimeout) || r.Status != 200 {
			t.Errorf("result %+v", r)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
