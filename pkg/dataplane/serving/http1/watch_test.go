package http1

import (
	"bufio"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// TestFullBuffer expects a closed connection of a client to be detected if its request fills the buffer.
func TestFullBuffer(t *testing.T) {
	for size := inSize - watchRoom - 2; size <= inSize+2; size++ {
		waits := make(chan struct{})
		router := newFakeRouter("")
		router.acquire = func(ctx context.Context) (*Upstream, *serving.Rejection) {
			close(waits)
			<-ctx.Done()
			return nil, nil
		}
		conn := dial(t, serve(t, &Server{Handler: router}))
		head := "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + strconv.Itoa(inSize/2) + "\r\nX: "
		write(t, conn, head+strings.Repeat("a", size-len(head)-4-inSize/2)+"\r\n\r\n"+strings.Repeat("b", inSize/2))
		<-waits
		conn.Close()
		if r := router.result(t); !errors.Is(r.Err, errClientGone) {
			t.Errorf("result %+v", r)
		}
	}
}

// TestClientGone expects the backend and the handler to notice when the client closes its connection at any point of an exchange.
func TestClientGone(t *testing.T) {
	disconnects := map[string]func(*net.TCPConn){
		"close":      func(conn *net.TCPConn) { conn.Close() },
		"half close": func(conn *net.TCPConn) { _ = conn.CloseWrite() },
		"reset":      func(conn *net.TCPConn) { _ = conn.SetLinger(0); conn.Close() },
	}
	for how, disconnect := range disconnects {
		t.Run("while it waits, "+how, func(t *testing.T) {
			waits := make(chan struct{})
			router := newFakeRouter("")
			router.acquire = func(ctx context.Context) (*Upstream, *serving.Rejection) {
				close(waits)
				<-ctx.Done()
				return nil, nil
			}
			conn := dial(t, serve(t, &Server{Handler: router})).(*net.TCPConn)
			write(t, conn, getA)
			<-waits
			disconnect(conn)
			if r := router.result(t); !errors.Is(r.Err, errClientGone) || r.Status != 0 {
				t.Errorf("result %+v", r)
			}
		})
		for _, answer := range []string{"", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"} {
			t.Run("after "+answer+", "+how, func(t *testing.T) {
				waits, ended := make(chan struct{}), make(chan struct{})
				app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
					skipHead(r)
					trySend(conn, answer)
					close(waits)
					untilClosed(r)
					close(ended)
				})
				router := newFakeRouter(app)
				conn := dial(t, serve(t, &Server{Handler: router})).(*net.TCPConn)
				write(t, conn, getA)
				<-waits
				disconnect(conn)
				if r := router.result(t); !errors.Is(r.Err, errClientGone) {
					t.Errorf("result %+v", r)
				}
				<-ended
			})
		}
	}
}

// TestClientGoneAfterSlowRequest expects a closed connection of a client to be detected after an earlier request with other
// deadlines on the same connections.
func TestClientGoneAfterSlowRequest(t *testing.T) {
	waits, ended := make(chan struct{}), make(chan struct{})
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		skipHead(r)
		<-time.After(3 * watchAfter)
		trySend(conn, hi)
		skipHead(r)
		close(waits)
		untilClosed(r)
		close(ended)
	})
	router := newFakeRouter(app)
	router.timeouts.Start = time.Minute
	conn := dial(t, serve(t, &Server{Handler: router}))
	write(t, conn, getA)
	expect(t, conn, hi)
	router.result(t)
	write(t, conn, getA)
	<-waits
	conn.Close()
	if r := router.result(t); !errors.Is(r.Err, errClientGone) {
		t.Errorf("result %+v", r)
	}
	<-ended
}

// slowHalfClose is a connection to a backend that the backend answers as soon as it sees the end of the stream, before CloseWrite returns.
type slowHalfClose struct {
	*net.TCPConn
	answered chan struct{}
}

func (c *slowHalfClose) CloseWrite() error {
	err := c.TCPConn.CloseWrite()
	<-c.answered
	// The goroutine that reads the answer runs.
	<-time.After(watchAfter)
	return err
}

// TestAnswerToGoneClient expects that the answer of a backend to the end of its request is not counted as the client's.
func TestAnswerToGoneClient(t *testing.T) {
	waits, answered := make(chan struct{}), make(chan struct{})
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		skipHead(r)
		close(waits)
		untilClosed(r)
		trySend(conn, hi)
		close(answered)
		<-t.Context().Done()
	})
	upstream, err := newUpstreamConn(&slowHalfClose{TCPConn: dial(t, app).(*net.TCPConn), answered: answered})
	if err != nil {
		t.Fatal(err)
	}
	router := newFakeRouter("")
	router.upstream.put(upstream, time.Now())
	conn := dial(t, serve(t, &Server{Handler: router}))
	write(t, conn, getA)
	<-waits
	conn.Close()
	if r := router.result(t); !errors.Is(r.Err, errClientGone) || r.Status != 0 {
		t.Errorf("result %+v", r)
	}
}
