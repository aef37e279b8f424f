package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/linger"
)

// fakeRouter is a Handler that forwards all requests to one upstream.
type fakeRouter struct {
	upstream *Upstream
	// rejection, if not nil, answers all requests. standard declines all requests.
	rejection *serving.Rejection
	standard  bool
	// acquire, if not nil, replaces upstream. If it returns neither upstream nor rejection, the request is canceled.
	acquire  func(ctx context.Context) (*Upstream, *serving.Rejection)
	timeouts serving.Timeouts
	// budget bounds the memory of exchanges, if not nil. It is not released.
	budget *flow.Budget
	// streaming is the last argument of Streaming.
	streaming atomic.Bool
	drop, add string
	// place is the result of Abandon.
	place *linger.Place

	mu          sync.Mutex
	heads       []string
	unreachable int
	answered    int
	// done receives the results.
	done chan serving.Result
}

func newFakeRouter(address string) *fakeRouter {
	return &fakeRouter{upstream: NewUpstream(address), done: make(chan serving.Result, 10000)}
}

func (r *fakeRouter) ServeHTTP1(x *Exchange) bool {
	head := x.Head()
	r.mu.Lock()
	r.heads = append(r.heads, string(head.Method)+" "+string(head.Target)+" "+string(head.Host))
	r.mu.Unlock()
	if r.standard {
		return false
	}
	if r.rejection != nil {
		_ = x.Reject(r.rejection)
		return true
	}
	result := serving.Result{}
	defer func() {
		if fault := recover(); fault != nil {
			r.done <- serving.Result{Err: fmt.Errorf("panic: %v", fault)}
			panic(fault)
		}
		r.done <- result
	}()
	x.Begin(&fakeExchange{r})
	result = r.forward(x)
	if result.Outcome == serving.Rejected {
		result.Status = result.Rejection.Status
		_ = x.Reject(result.Rejection)
	}
	return true
}

func (r *fakeRouter) forward(x *Exchange) serving.Result {
	for {
		upstream, rejection := r.upstream, (*serving.Rejection)(nil)
		if r.acquire != nil {
			ctx, stop := x.Wait()
			upstream, rejection = r.acquire(ctx)
			err := context.Cause(ctx)
			stop()
			switch {
			case rejection != nil:
				return serving.Result{Outcome: serving.Rejected, Rejection: rejection}
			case errors.Is(err, serving.ErrTimeout):
				return serving.Result{Outcome: serving.Rejected, Rejection: serving.TimedOut, Err: err}
			case upstream == nil:
				return serving.Result{Outcome: serving.Canceled, Err: err}
			}
		}
		result := x.Forward(upstream)
		if result.Outcome != serving.Unreached {
			return result
		}
		r.mu.Lock()
		r.unreachable++
		r.mu.Unlock()
	}
}

type fakeExchange struct{ router *fakeRouter }

func (e *fakeExchange) Timeouts() serving.Timeouts { return e.router.timeouts }

func (e *fakeExchange) Passes(name []byte) bool { return string(name) != e.router.drop }

func (e *fakeExchange) AppendHost(dst, client []byte) []byte { return append(dst, client...) }

func (e *fakeExchange) AltSvc() string { return "" }

func (e *fakeExchange) AppendFields(dst []byte) []byte { return append(dst, e.router.add...) }

func (e *fakeExchange) ResponseStarted() {
	e.router.mu.Lock()
	defer e.router.mu.Unlock()
	e.router.answered++
}

func (e *fakeExchange) Streaming(endless bool) { e.router.streaming.Store(endless) }

func (e *fakeExchange) Abandon() *linger.Place { return e.router.place }

func (e *fakeExchange) Hold(bytes int) bool {
	return e.router.budget == nil || e.router.budget.Reserve("app", int64(bytes))
}

// listen returns a listener on loopback that is closed when the test ends.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// serve starts a server on loopback until the test ends, and returns its address.
func serve(t testing.TB, s *Server) string {
	t.Helper()
	l := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		cancel()
		wg.Wait()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.ServeConn(ctx, conn) })
		}
	}()
	return l.Addr().String()
}

// rawApp starts an application that calls handle for each connection and returns its address. n counts the connections from 1.
func rawApp(t testing.TB, handle func(n int, conn net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l := listen(t)
	go func() {
		for n := 1; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(patience))
			go func() {
				defer conn.Close()
				handle(n, conn, bufio.NewReader(conn))
			}()
		}
	}()
	return l.Addr().String()
}

// answering is an application that reads requests without body, sends each to got, and answers with the same bytes.
func answering(t testing.TB, answer string, got chan<- string) string {
	return rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		for {
			head, err := readHead(r)
			if err != nil {
				return
			}
			if got != nil {
				got <- head
			}
			trySend(conn, answer)
		}
	})
}

// readHead reads up to an empty line.
func readHead(r *bufio.Reader) (string, error) {
	var head strings.Builder
	for {
		line, err := r.ReadString('\n')
		head.WriteString(line)
		if err != nil || line == "\r\n" {
			return head.String(), err
		}
	}
}

// patience is the time that a test waits for an immediate result.
const patience = time.Minute

// retried calls attempt until it returns true. An attempt returns false if a time limit expired too early because the process was paused.
func retried(t testing.TB, attempt func() bool) {
	t.Helper()
	for range 20 {
		if attempt() {
			return
		}
	}
	t.Fatal("each attempt ended too early")
}

// dial returns a connection to addr that is closed when the test ends.
func dial(t testing.TB, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// write sends s.
func write(t testing.TB, conn net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(conn, s); err != nil {
		t.Fatal(err)
	}
}

// expect reads len(want) bytes and compares them with want, ignoring the value of the Date field.
func expect(t testing.TB, r io.Reader, want string) {
	t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(r, got)
	if diff := cmp.Diff(undated(want), undated(string(got[:n]))); diff != "" {
		t.Errorf("read (-want +got, %v):\n%s", err, diff)
	}
}

// expectEnd reads to the end and compares the bytes with want, ignoring the value of the Date field.
func expectEnd(t testing.TB, r io.Reader, want string) {
	t.Helper()
	got, err := io.ReadAll(r)
	if diff := cmp.Diff(undated(want), undated(string(got))); diff != "" || err != nil {
		t.Errorf("read to the end (-want +got, %v):\n%s", err, diff)
	}
}

var date = regexp.MustCompile(`Date: [^\r]*`)

func undated(s string) string { return date.ReplaceAllString(s, "Date: "+someDate) }

// someDate is a Date of the usual length.
const someDate = "Sat, 01 Jan 2000 00:00:00 GMT"

// result returns the result of the next exchange that ends.
func (r *fakeRouter) result(t testing.TB) serving.Result {
	t.Helper()
	select {
	case result := <-r.done:
		return result
	case <-time.After(patience):
		t.Fatal("the exchange did not end")
		return serving.Result{}
	}
}

// begun returns the request lines and hosts of all requests.
func (r *fakeRouter) begun() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heads
}

func refused(status, body string, closing bool) string {
	end := "\r\n"
	if closing {
		end = "Connection: close\r\n\r\n"
	}
	return "HTTP/1.1 " + status + "\r\nContent-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\nDate: " +
		someDate + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n" + end + body
}

// drain reads to the end.
func drain(t testing.TB, r io.Reader) string {
	t.Helper()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Errorf("read to the end: %v", err)
	}
	return string(got)
}

// trySend sends s and ignores errors.
func trySend(w io.Writer, s string) { _, _ = io.WriteString(w, s) }

// skipHead reads up to an empty line, or the end.
func skipHead(r *bufio.Reader) { _, _ = readHead(r) }

// untilClosed reads to the end.
func untilClosed(r io.Reader) { _, _ = io.Copy(io.Discard, r) }
