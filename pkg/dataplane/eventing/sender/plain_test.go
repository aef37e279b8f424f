package sender

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// hostCount returns the number of hosts with kept connections.
func hostCount(s *Sender) int {
	t := s.transports.plain
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.idle)
}

// TestIdleConnections checks that idle connections are closed after some time, that connections in use stay open, and that no
// state of hosts without events is kept.
func TestIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened, open atomic.Int32
		s := New(Options{Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			opened.Add(1)
			open.Add(1)
			go func() {
				defer open.Add(-1)
				defer far.Close()
				reader := bufio.NewReader(far)
				for {
					r, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body) //nolint:errcheck // seen by the next request
					fmt.Fprint(far, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
				}
			}()
			return near, nil
		}})
		send := func(to string) {
			t.Helper()
			if result := s.Send(t.Context(), order(), eventing.Endpoint{URL: to}, Attempt{}); result.Err != nil {
				t.Fatal(result.Err)
			}
		}
		for range 5 {
			send("http://a")
			<-time.After(keepIdle - time.Second)
		}
		send("http://b")
		if opened.Load() != 2 || hostCount(s) != 2 {
			t.Errorf("%d connections were opened to %d hosts", opened.Load(), hostCount(s))
		}
		<-time.After(keepIdle + time.Second)
		synctest.Wait()
		if open.Load() != 0 || hostCount(s) != 0 {
			t.Errorf("%d connections to %d hosts remain after some time", open.Load(), hostCount(s))
		}
		send("http://a")
		s.Close()
		synctest.Wait()
		if open.Load() != 0 {
			t.Error("a connection remains after Close")
		}
	})
}

// TestForgottenHosts checks that no state is kept for recipients that cannot be reached, or that close their connections.
func TestForgottenHosts(t *testing.T) {
	closing := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusAccepted)
	})
	silent := serveRaw(t, func(w io.Writer) {
		fmt.Fprint(w, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
		w.(net.Conn).Close()
	})
	s := newSender(t, Options{})
	for to, code := range map[eventing.Endpoint]int{closing: 202, silent: 202, {URL: refusing}: 0} {
		if result := s.Send(t.Context(), order(), to, Attempt{}); result.Code != code {
			t.Errorf("%s: %+v", to.URL, result)
		}
	}
	// The connection that was closed silently is idle until its next use.
	s.transports.plain.close()
	if n := hostCount(s); n != 0 {
		t.Errorf("%d hosts are kept", n)
	}
}

// TestConnectionClosedWhileIdle checks that an event is sent again on a new connection if the recipient closes the idle
// connection at that moment. An event is not sent again if the recipient read it and closed the connection without an answer.
func TestConnectionClosedWhileIdle(t *testing.T) {
	for name, test := range map[string]struct {
		// reads reports whether the recipient reads a second request on a connection.
		reads  bool
		code   int
		events int
	}{
		"unread": {false, 202, 2},
		"read":   {true, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			first, second, received := sendTwice(t, test.reads)
			// The connection was closed by the sender if it was idle for longer than keepIdle: both events came over new ones.
			for attempts := 1; test.reads && second.Code == http.StatusAccepted && received == 2 && attempts < 5; attempts++ {
				first, second, received = sendTwice(t, test.reads)
			}
			if first.Code != http.StatusAccepted {
				t.Fatalf("the first event: %+v", first)
			}
			if second.Code != test.code {
				t.Errorf("the second event: %+v", second)
			}
			if received != test.events {
				t.Errorf("the recipient read %d events, want %d", received, test.events)
			}
		})
	}
}

// sendTwice sends two events to a recipient that closes each connection after one response, and returns how many it read.
func sendTwice(t *testing.T, reads bool) (first, second Result, read int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var received atomic.Int32
	receive := func(reader *bufio.Reader) bool {
		r, err := http.ReadRequest(reader)
		if err != nil {
			return false
		}
		io.Copy(io.Discard, r.Body) //nolint:errcheck // the event is counted anyway
		received.Add(1)
		return true
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				reader := bufio.NewReader(conn)
				if !receive(reader) {
					return
				}
				io.WriteString(conn, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n") //nolint:errcheck // the sender notices
				if reads {
					receive(reader)
					return
				}
				// The next request arrives, and is in the buffers of the system when the connection is closed.
				raw, _ := conn.(*net.TCPConn).SyscallConn()
				raw.Read(func(fd uintptr) bool { //nolint:errcheck // the sender notices
					n, _, _ := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK)
					return n > 0
				})
			}()
		}
	}()
	s := newSender(t, Options{})
	to := eventing.Endpoint{URL: "http://" + listener.Addr().String()}
	first = s.Send(t.Context(), order(), to, Attempt{})
	second = s.Send(t.Context(), order(), to, Attempt{})
	return first, second, int(received.Load())
}

// TestManyAtOnce checks that each concurrent delivery has its own connection and its own answer.
func TestManyAtOnce(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			if strings.HasPrefix(name, "Ce-") {
				w.Header()[name] = values
			}
		}
		data, _ := io.ReadAll(r.Body)
		w.Write(data) //nolint:errcheck // seen by the sender
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	s := newSender(t, Options{})
	const senders = 20
	var wait sync.WaitGroup
	for i := range senders {
		wait.Go(func() {
			e := order()
			for step := range 50 {
				e.Data = []byte(fmt.Sprintf(`"%d.%d%s"`, i, step, strings.Repeat("x", step*100)))
				result := s.Send(t.Context(), e, eventing.Endpoint{URL: server.URL}, Attempt{ExpectReply: true})
				if result.Err != nil || result.Reply == nil || string(result.Reply.Data) != string(e.Data) {
					t.Errorf("event %d of %d: %+v", step, i, result)
					return
				}
			}
		})
	}
	wait.Wait()
	// A pause of this process may end idle connections.
	if n := connections.Load(); n > 2*senders {
		t.Errorf("%d connections for %d senders", n, senders)
	}
}

// TestEarlyAnswers covers recipients that answer before they have read large events.
func TestEarlyAnswers(t *testing.T) {
	to := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) })
	e := order()
	e.Data = make([]byte, 100<<10)
	s := newSender(t, Options{})
	for range 20 {
		if result := s.Send(t.Context(), e, to, Attempt{}); result.Code != http.StatusRequestEntityTooLarge || result.Retryable {
			t.Fatalf("%+v", result)
		}
	}
}
