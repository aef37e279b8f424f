package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

const hi = "HTTP/1.1 200 OK\r\nDate: " + someDate + "\r\nContent-Length: 2\r\n\r\nhi"

// TestPipelining sends several requests at once, some of which are rejected, and expects the responses in order.
func TestPipelining(t *testing.T) {
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			body, _ := io.ReadAll(req.Body)
			answer := req.URL.Path + string(body)
			trySend(conn, "HTTP/1.1 200 OK\r\nDate: "+someDate+"\r\nContent-Length: "+strconv.Itoa(len(answer))+"\r\n\r\n"+answer)
		}
	})
	router := newFakeRouter(app)
	conn := dial(t, serve(t, &Server{Handler: router}))
	var requests, answers strings.Builder
	for i := range 300 {
		body := strings.Repeat("b", i)
		path := "/" + strconv.Itoa(i)
		requests.WriteString("POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + strconv.Itoa(i) + "\r\n\r\n" + body)
		answers.WriteString("HTTP/1.1 200 OK\r\nDate: " + someDate + "\r\nContent-Length: " + strconv.Itoa(len(path)+i) + "\r\n\r\n" + path + body)
	}
	write(t, conn, requests.String())
	expect(t, conn, answers.String())
}

// TestByteByByte sends a head byte by byte.
func TestByteByByte(t *testing.T) {
	router := newFakeRouter(answering(t, hi, nil))
	conn := dial(t, serve(t, &Server{Handler: router}))
	for range 2 {
		for i := range len(getA) {
			write(t, conn, getA[i:i+1])
		}
		expect(t, conn, hi)
	}
}

// TestConnectionClose expects a connection to end after a request with Connection: close, and further input to be ignored.
func TestConnectionClose(t *testing.T) {
	router := newFakeRouter(answering(t, hi, nil))
	conn := dial(t, serve(t, &Server{Handler: router}))
	write(t, conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n"+getA)
	expectEnd(t, conn, strings.Replace(hi, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
	if n := len(router.begun()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestRefusals expects the handler's rejections to be sent on a connection that stays open.
func TestRefusals(t *testing.T) {
	router := newFakeRouter("")
	router.rejection = &serving.Rejection{Status: 503, Body: "pending request queue full", RetryAfter: 1500 * time.Millisecond}
	conn := dial(t, serve(t, &Server{Handler: router}))
	want := strings.Replace(refused("503 Service Unavailable", "pending request queue full", false), "Content-Length", "Retry-After: 2\r\nContent-Length", 1)
	write(t, conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
	expect(t, conn, want)
	write(t, conn, "HEAD"+getA[3:]+getA)
	expect(t, conn, strings.TrimSuffix(want, "pending request queue full")+want)
}

// TestHeaderTimeout expects a head that does not arrive in time to be rejected, even if its client keeps sending.
func TestHeaderTimeout(t *testing.T) {
	conn := dial(t, serve(t, &Server{Handler: newFakeRouter(""), HeaderTimeout: 100 * time.Millisecond}))
	write(t, conn, "GET / HTTP/1.1\r\n")
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-ticker.C:
				trySend(conn, "X: a\r\n")
			case <-stop:
				return
			}
		}
	}()
	expect(t, conn, refused("408 Request Timeout", headTimeout.Body, true))
}

// TestIdleTimeout expects a connection without requests to be closed.
func TestIdleTimeout(t *testing.T) {
	router := newFakeRouter(answering(t, hi, nil))
	addr := serve(t, &Server{Handler: router, IdleTimeout: time.Second})
	expectEnd(t, dial(t, addr), "")
	retried(t, func() bool {
		conn := dial(t, addr)
		// It fails if the connection is closed already.
		trySend(conn, getA)
		got, err := io.ReadAll(conn)
		if len(got) == 0 {
			return false
		}
		if undated(string(got)) != undated(hi) || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		return true
	})
}

// TestStop expects connections without a request or with an incomplete head to be closed when the server's context is canceled,
// and connections with a request after its response.
func TestStop(t *testing.T) {
	arrived, finish := make(chan struct{}), make(chan struct{})
	app := rawApp(t, func(_ int, conn net.Conn, r *bufio.Reader) {
		if _, err := readHead(r); err == nil {
			close(arrived)
			<-finish
			trySend(conn, hi)
		}
	})
	l := listen(t)
	s := &Server{Handler: newFakeRouter(app), HeaderTimeout: time.Minute}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, 3)
	connect := func() net.Conn {
		client := dial(t, l.Addr().String())
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			s.ServeConn(ctx, conn)
			ended <- struct{}{}
		}()
		return client
	}
	idle, active, starting := connect(), connect(), connect()
	write(t, active, getA)
	<-arrived
	write(t, starting, getA[:10])
	cancel()
	expectEnd(t, idle, "")
	// The connection may be reset, because the server need not have read all input.
	if n, err := starting.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the start of a request: read %d bytes, %v", n, err)
	}
	close(finish)
	expectEnd(t, active, strings.Replace(hi, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
	for range 3 {
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatal("ServeConn did not return")
		}
	}
}

// TestStandardPath expects requests that need the standard path to arrive there.
func TestStandardPath(t *testing.T) {
	for _, tc := range []struct {
		name, request string
		// read has the bytes that the standard path reads first, if they differ from request.
		read string
	}{
		{name: "HTTP/2", request: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nframes"}, // all input
		{name: "HTTP/1.0", request: "GET / HTTP/1.0\r\n\r\n"},
		{name: "CONNECT", request: "CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n"},
		{name: "absolute form", request: "GET http://b/ HTTP/1.1\r\nhost: a\r\n\r\n"},
		{name: "Upgrade", request: "GET / HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"},
		{name: "Expect", request: "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"},
		{name: "chunks", request: "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"},
		{name: "incomplete body", request: "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nab"}, // the part that has arrived
		{name: "names of fields", request: "GET / HTTP/1.1\r\nHost: A\r\nUPGRADE: a\r\n\r\n",
			read: "GET / HTTP/1.1\r\nhost: A\r\nupgrade: a\r\n\r\n"},
	} {
		for _, before := range []string{"", getA} {
			if before != "" && tc.name == "HTTP/2" {
				continue
			}
			t.Run(tc.name+" after "+strconv.Itoa(len(before)), func(t *testing.T) {
				router := newFakeRouter(answering(t, hi, nil))
				read := tc.read
				if read == "" {
					read = tc.request
				}
				standard := func(conn net.Conn) {
					defer conn.Close()
					expect(t, conn, read)
					trySend(conn, "standard")
				}
				s := &Server{Handler: router, Standard: standard}
				if tc.name == "HTTP/2" {
					s = &Server{Handler: router, HTTP2: func(_ context.Context, conn net.Conn) { standard(conn) }}
				}
				conn := dial(t, serve(t, s))
				if before != "" {
					write(t, conn, before)
					expect(t, conn, hi)
				}
				write(t, conn, tc.request)
				expectEnd(t, conn, "standard")
				if len(router.begun()) != len(before)/len(getA) {
					t.Errorf("router got %q", router.begun())
				}
			})
		}
	}
}

// TestHandlerDeclines expects a request that the handler declines to arrive at the standard path with its body.
func TestHandlerDeclines(t *testing.T) {
	router := newFakeRouter("")
	router.standard = true
	const request = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab"
	conn := dial(t, serve(t, &Server{Handler: router, Standard: func(conn net.Conn) {
		defer conn.Close()
		expect(t, conn, request)
	}}))
	write(t, conn, request+getA)
	expectEnd(t, conn, "")
}

// TestLatePreface expects the start of HTTP/2 to be rejected on a connection that had a request.
func TestLatePreface(t *testing.T) {
	router := newFakeRouter(answering(t, hi, nil))
	conn := dial(t, serve(t, &Server{Handler: router}))
	write(t, conn, getA+"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	expect(t, conn, hi+refused("505 HTTP Version Not Supported", badVersion.Body, true))
}

// TestPipe expects a connection without a file descriptor to be passed to the standard path.
func TestPipe(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	var got net.Conn
	(&Server{Standard: func(conn net.Conn) { got = conn }}).ServeConn(t.Context(), server)
	if got != server {
		t.Errorf("the standard path got %v", got)
	}
}

// TestEmptyLineFirst expects one empty line before each request to be skipped (RFC 9112 2.2), also if it arrives in pieces.
func TestEmptyLineFirst(t *testing.T) {
	for name, pieces := range map[string][]string{
		"whole":      {"\r\n" + getA},
		"two pieces": {getA + "\r", "\n" + getA, "\r\n", getA},
	} {
		t.Run(name, func(t *testing.T) {
			router := newFakeRouter(answering(t, hi, nil))
			conn := dial(t, serve(t, &Server{Handler: router}))
			for _, piece := range pieces {
				write(t, conn, piece)
				if strings.Contains(piece, getA) {
					expect(t, conn, hi)
				}
			}
		})
	}
}
