package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// TestUnreachable expects unreachable backends to be retried until one accepts the connection or the request times out.
func TestUnreachable(t *testing.T) {
	router := newFakeRouter("")
	app, n := NewUpstream(answering(t, hi, nil)), 0
	router.acquire = func(context.Context) (*Upstream, *serving.Rejection) {
		if n++; n < 4 {
			return NewUpstream("127.0.0.1:1"), nil
		}
		return app, nil
	}
	conn := dial(t, serve(t, &Server{Handler: router}))
	write(t, conn, getA)
	expect(t, conn, hi)
	if r := router.result(t); r.Err != nil || router.unreachable < 3 {
		t.Errorf("result %+v after %d attempts", r, router.unreachable)
	}
	// If no backend is reachable, the start timeout ends the request.
	n, router.timeouts.Start = math.MinInt, 100*time.Millisecond
	write(t, conn, getA)
	expect(t, conn, refused("504 Gateway Timeout", "request timeout", false))
	if r := router.result(t); !errors.Is(r.Err, serving.ErrTimeout) || r.Status != 504 {
		t.Errorf("result %+v", r)
	}
}

// TestAcquire covers the results of the handler's wait for a backend.
func TestAcquire(t *testing.T) {
	router := newFakeRouter("")
	router.acquire = func(context.Context) (*Upstream, *serving.Rejection) {
		return nil, &serving.Rejection{Status: 503, Body: "full"}
	}
	conn := dial(t, serve(t, &Server{Handler: router}))
	write(t, conn, getA)
	expect(t, conn, refused("503 Service Unavailable", "full", false))
	if r := router.result(t); r.Status != 503 || r.Err != nil {
		t.Errorf("result %+v", r)
	}
	router.acquire = func(ctx context.Context) (*Upstream, *serving.Rejection) { <-ctx.Done(); return nil, nil }
	router.timeouts.Start = 20 * time.Millisecond
	write(t, conn, getA)
	expect(t, conn, refused("504 Gateway Timeout", "request timeout", false))
	router.result(t)
	// Input that arrives while a request waits is the next request.
	waits, found := make(chan struct{}), make(chan struct{})
	app := NewUpstream(answering(t, hi, nil))
	router.timeouts.Start = 0
	router.acquire = func(context.Context) (*Upstream, *serving.Rejection) {
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
			trySend(conn, answer)
		})
		router := newFakeRouter(app)
		write(t, dial(t, serve(t, &Server{Handler: router})), "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
		if diff := cmp.Diff(serving.Result{Status: 200, RequestBytes: 3, ResponseBytes: 2}, router.result(t)); diff != "" {
			t.Errorf("result of %q (-want +got):\n%s", answer, diff)
		}
	}
}

// TestTimeouts expects each limit to apply before the response starts, and the limit on stalls after that.
func TestTimeouts(t *testing.T) {
	const bound = 80 * time.Millisecond
	head := "HTTP/1.1 200 OK\r\nDate: " + someDate + "\r\nContent-Length: 9\r\n\r\nab"
	for _, tc := range []struct {
		name, answer string
		set          func(*fakeRouter)
	}{
		{name: "start", set: func(r *fakeRouter) { r.timeouts.Start = bound }},
		{name: "response start", set: func(r *fakeRouter) { r.timeouts.ResponseStart = bound }},
		{name: "idle", set: func(r *fakeRouter) { r.timeouts.Idle = bound }},
		{name: "short", set: func(r *fakeRouter) { r.timeouts.Start = 10 * time.Millisecond }},
		{name: "stall", answer: head, set: func(r *fakeRouter) { r.timeouts.Stall = bound }},
		{name: "short stall", answer: head, set: func(r *fakeRouter) { r.timeouts.Stall = 10 * time.Millisecond }},
		{name: "start within the head", answer: head[:20], set: func(r *fakeRouter) { r.timeouts.Start = bound }},
		{name: "response start within the head", answer: head[:20], set: func(r *fakeRouter) { r.timeouts.ResponseStart = bound }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			retried(t, func() bool {
				ended := make(chan struct{})
				var reached atomic.Bool
				app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
					reached.Store(true)
					skipHead(r)
					trySend(conn, tc.answer)
					untilClosed(r)
					close(ended)
				})
				router := newFakeRouter(app)
				tc.set(router)
				conn := dial(t, serve(t, &Server{Handler: router}))
				begin := time.Now()
				write(t, conn, getA)
				if tc.answer == head {
					if got := drain(t, conn); got != head {
						t.Logf("read %q", got)
						return false
					}
				} else {
					expect(t, conn, refused("504 Gateway Timeout", "request timeout", false))
				}
				if took := time.Since(begin); took < 10*time.Millisecond {
					t.Errorf("duration %v", took)
				}
				if r := router.result(t); !errors.Is(r.Err, serving.ErrTimeout) {
					t.Errorf("result %+v", r)
				}
				// A request that timed out before it was sent has no connection.
				if reached.Load() {
					<-ended
				}
				return true
			})
		})
	}
}

// TestResponseStartPasses expects the limits until the response starts not to apply to the rest.
func TestResponseStartPasses(t *testing.T) {
	const limit = 3 * time.Second
	retried(t, func() bool {
		finish := make(chan struct{})
		app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
			skipHead(r)
			trySend(conn, hi[:len(hi)-1])
			<-finish
			trySend(conn, hi[len(hi)-1:])
		})
		router := newFakeRouter(app)
		router.timeouts = serving.Timeouts{Start: limit, ResponseStart: limit, Idle: limit, Stall: patience}
		conn := dial(t, serve(t, &Server{Handler: router}))
		write(t, conn, getA)
		got := make([]byte, len(hi)-1)
		n, _ := io.ReadFull(conn, got)
		if bytes.HasPrefix(got, []byte("HTTP/1.1 504 ")) {
			close(finish)
			return false
		}
		expect(t, bytes.NewReader(got[:n]), hi[:len(hi)-1])
		time.AfterFunc(limit+limit/4, func() { close(finish) })
		expect(t, conn, hi[len(hi)-1:])
		return true
	})
}

// TestStalledClient expects a client that does not read its response to time out.
func TestStalledClient(t *testing.T) {
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		skipHead(r)
		trySend(conn, "HTTP/1.1 200 OK\r\n\r\n")
		_, _ = io.Copy(conn, zeros{})
	})
	router := newFakeRouter(app)
	router.timeouts.Stall = 200 * time.Millisecond
	conn := dial(t, serve(t, &Server{Handler: router}))
	write(t, conn, getA)
	if r := router.result(t); !errors.Is(r.Err, serving.ErrTimeout) || r.Status != 200 {
		t.Errorf("result %+v", r)
	}
}

// TestInterimIsNoStart expects an interim response not to count as the start of the response.
func TestInterimIsNoStart(t *testing.T) {
	const hint = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
	retried(t, func() bool {
		app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
			skipHead(r)
			trySend(conn, hint)
			untilClosed(r)
		})
		router := newFakeRouter(app)
		router.timeouts = serving.Timeouts{Start: 2 * time.Second, Stall: patience}
		conn := dial(t, serve(t, &Server{Handler: router}))
		write(t, conn, getA)
		got := make([]byte, len(hint))
		n, _ := io.ReadFull(conn, got)
		if bytes.HasPrefix(got, []byte("HTTP/1.1 504 ")) {
			return false
		}
		expect(t, io.MultiReader(bytes.NewReader(got[:n]), conn), hint+refused("504 Gateway Timeout", "request timeout", false))
		return true
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
