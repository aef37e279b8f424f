package delivery

import (
	"bufio"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// hostCount returns for how many hosts something is kept.
func hostCount(s *Sender) int {
	t := s.transports.plain
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.idle)
}

// TestIdleConnections has idle connections closed after some time, those in use longer, and nothing left of hosts that
// get no more events.
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
			t.Errorf("%d connections to %d hosts are left after some time", open.Load(), hostCount(s))
		}
		send("http://a")
		s.Close()
		synctest.Wait()
		if open.Load() != 0 {
			t.Error("a connection is left after Close")
		}
	})
}

// TestForgottenHosts has nothing kept of recipients that cannot be reached, or that close their connections.
func TestForgottenHosts(t *testing.T) {
	closing := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusAccepted)
	})
	silent := serveRaw(t, func(w io.Writer) {
		fmt.Fprint(w, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
		w.(net.Conn).Close()
	})
	gone := httptest.NewServer(nil)
	gone.Close()
	s := newSender(t, Options{})
	for to, code := range map[eventing.Endpoint]int{closing: 202, silent: 202, {URL: gone.URL}: 0} {
		if result := s.Send(t.Context(), order(), to, Attempt{}); result.Code != code {
			t.Errorf("%s: %+v", to.URL, result)
		}
	}
	// The connection that was closed in silence is idle until it is wanted again.
	s.transports.plain.close()
	if n := hostCount(s); n != 0 {
		t.Errorf("%d hosts are kept", n)
	}
}

// TestConnectionClosedWhileIdle has an event sent by a connection that the recipient closes at that moment sent again, once,
// by a new one. What a new connection does is final.
func TestConnectionClosedWhileIdle(t *testing.T) {
	type used struct{}
	for name, start := range map[string]func(*httptest.Server){"http": (*httptest.Server).Start, "https": (*httptest.Server).StartTLS} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var answered []string
			var closesNew bool
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				requests := r.Context().Value(used{}).(*int)
				if *requests++; *requests > 1 || closesNew {
					panic(http.ErrAbortHandler)
				}
				data, _ := io.ReadAll(r.Body)
				answered = append(answered, string(data))
				if _, there := r.Header["Idempotency-Key"]; there {
					t.Error("the request has a header Idempotency-Key")
				}
				w.WriteHeader(http.StatusAccepted)
			}))
			server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return context.WithValue(ctx, used{}, new(int)) }
			start(server)
			defer server.Close()
			to := eventing.Endpoint{URL: server.URL}
			if certificate := server.Certificate(); certificate != nil {
				to.CACerts = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}))
			}
			s := newSender(t, Options{})
			var want []string
			for i := range 5 {
				e := order()
				e.Data = []byte(strconv.Itoa(i))
				if result := s.Send(t.Context(), e, to, Attempt{}); result.Code != http.StatusAccepted {
					t.Errorf("event %d: %+v", i, result)
				}
				want = append(want, strconv.Itoa(i))
			}
			mu.Lock()
			if !slices.Equal(answered, want) {
				t.Errorf("%q were answered, want %q", answered, want)
			}
			closesNew = true
			mu.Unlock()
			if result := s.Send(t.Context(), order(), to, Attempt{}); result.Err == nil || !result.Retryable {
				t.Errorf("a recipient that closes all connections: %+v", result)
			}
		})
	}
}

// TestManyAtOnce has as many connections as deliveries at a time, and their answers to the right ones.
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
	if n := connections.Load(); n > senders {
		t.Errorf("%d connections for %d senders", n, senders)
	}
}

// TestEarlyAnswers has recipients answer before they have read large events.
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
