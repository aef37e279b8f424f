package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// silent returns the address of an application that accepts connections and does not read.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			conn.Close()
		}
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
	}()
	return listener.Addr().String()
}

// Requests with 60 KB of head and 30 KB of body. The fast path forwards those with a Content-Length, the standard path the chunked
// ones.
var (
	bigPlain    = "POST / HTTP/1.1\r\nHost: app\r\nX-Big: " + strings.Repeat("x", 60_000) + "\r\nContent-Length: 30000\r\n\r\n" + strings.Repeat("y", 30_000)
	bigStandard = "POST / HTTP/1.1\r\nHost: app\r\nX-Big: " + strings.Repeat("x", 60_000) + "\r\nTransfer-Encoding: chunked\r\n\r\n7530\r\n" + strings.Repeat("y", 30_000) + "\r\n0\r\n\r\n"
)

// heap returns the bytes of memory in use.
func heap() int64 {
	goruntime.GC()
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestMemoryOfWaitingRequests sends 1,200 requests of 60 KB head and 30 KB body to an application that never answers. The
// memory that they hold stays within the budget, further requests are rejected with Retry-After, and other namespaces are served.
func TestMemoryOfWaitingRequests(t *testing.T) {
	const limit, clients, each = 16 << 20, 150, 8
	for name, request := range map[string]string{"plain": bigPlain, "standard": bigStandard} {
		t.Run(name, func(t *testing.T) {
			budget := flow.NewBudget(limit, largestRequest)
			b := serve(t, Options{Budget: budget, StopTimeout: time.Millisecond}, revision(0), nil)
			b.SetInstances(key("r"), []workload.Instance{{Name: "silent", Address: silent(t)}})
			other := routing.Key{Namespace: "other", Name: "r"}
			b.SetRevision(&routing.Revision{Key: other, Timeout: time.Minute})
			b.SetInstances(other, []workload.Instance{{Name: "i", Address: listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				drain(r.Body)
				fmt.Fprint(w, "served")
			}))}})
			b.SetRoute(routeTo("other", "other", routing.Target{Revision: other, Percent: 100}))
			before := heap()
			var refused atomic.Int64
			done := make(chan bool, clients)
			held := make(chan net.Conn, clients)
			for range clients {
				go func() {
					conn, err := net.Dial("tcp", b.address)
					if err != nil {
						t.Error(err)
						done <- true
						return
					}
					held <- conn
					reader := bufio.NewReader(conn)
					for range each {
						go io.WriteString(conn, request) //nolint:errcheck // the read of the response fails then
						res, err := http.ReadResponse(reader, nil)
						if err != nil {
							break
						}
						body, _ := io.ReadAll(res.Body)
						res.Body.Close()
						switch res.StatusCode {
						case http.StatusServiceUnavailable, http.StatusRequestHeaderFieldsTooLarge:
						case http.StatusRequestTimeout: // the client did not send its head within ten seconds
						default:
							t.Errorf("got %s %q, want 503, 431 or 408", res.Status, body)
						}
						if res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") == "" {
							t.Errorf("got 503 %q without Retry-After", body)
						}
						refused.Add(1)
						if res.Close {
							break
						}
					}
					done <- true
				}()
			}
			defer func() {
				for range clients {
					(<-held).Close()
				}
			}()
			// Rejected clients are done, the others wait forever.
			most := int64(0)
			waiting := func() int64 {
				return int64(inFlight(b.Gateway)["silent"])
			}
			deadline := time.After(time.Minute)
			for ended := int64(0); ended+waiting() < clients; {
				select {
				case <-done:
					ended++
				case <-time.After(10 * time.Millisecond):
				case <-deadline:
					t.Fatalf("%d clients are done, %d requests are in flight, of %d", ended, waiting(), clients)
				}
				most = max(most, budget.Used())
			}
			if refused.Load() == 0 || waiting() == 0 {
				t.Errorf("%d requests were refused, %d are held: want some of both", refused.Load(), waiting())
			}
			if used := max(most, budget.Used()); used > limit {
				t.Errorf("the requests hold %d bytes, more than the budget", used)
			}
			// Each connection needs about 20 KB more, including the client's side.
			if grown := heap() - before; grown > limit+clients*32<<10 {
				t.Errorf("%d requests in flight use %d bytes of memory, the budget counts %d of %d", waiting(), grown, budget.Used(), limit)
			} else {
				t.Logf("%d requests in flight use %d bytes of memory, the budget counts %d of %d; %d were refused", waiting(), grown, budget.Used(), limit, refused.Load())
			}
			for _, body := range []io.Reader{strings.NewReader("x"), streamed("x")} {
				r := b.request(t, http.MethodPost, body)
				r.Host = "other"
				if res, got := b.do(t, r); res.StatusCode != http.StatusOK || got != "served" {
					t.Errorf("another namespace gets %s %q", res.Status, got)
				}
			}
		})
	}
}

// TestMemoryIsGivenBack checks that all memory is released once all requests have ended, with any result.
func TestMemoryIsGivenBack(t *testing.T) {
	budget := flow.NewBudget(4<<20, largestRequest)
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		fmt.Fprint(w, strings.Repeat("z", 100_000))
	})
	b := serve(t, Options{Budget: budget}, revision(0), app)
	for _, request := range []string{
		bigPlain, bigStandard, strings.Replace(bigPlain, "Host: app", "Host: unknown", 1), strings.Replace(bigStandard, "Host: app", "Host: unknown", 1),
		strings.Replace(bigPlain, "X-Big", "X Big", 1), bigPlain[:50_000], bigPlain[:80_000], bigStandard[:80_000],
	} {
		conn, err := net.Dial("tcp", b.address)
		if err != nil {
			t.Fatal(err)
		}
		if len(request) < len(bigPlain)-10 {
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
		} else {
			go io.WriteString(conn, request+"GET / HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n") //nolint:errcheck // it may be refused
		}
		drain(conn)
		conn.Close()
	}
	deadline := time.After(time.Minute)
	for budget.Used() != 0 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%d bytes are held after all requests have ended", budget.Used())
		}
	}
}
