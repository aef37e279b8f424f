package ingress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestMemoryOfConnections checks that connections, the heads that arrive on them, and unread HTTP/2 frames do not exceed their share of the
// budget, and that all of it is free again when they are closed.
func TestMemoryOfConnections(t *testing.T) {
	const number, limit = 100, 4 << 20
	for name, test := range map[string]struct {
		sent string
		// each is the memory of a connection.
		each int64
	}{
		"idle":                   {"", connSize},
		"a head that begins":     {"POST /default/orders HTTP/1.1\r\nHost: x\r\n", connSize},
		"heads that do not end":  {"POST /default/orders HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 40<<10), connSize + headCopies*5*headStep},
		"HTTP/2":                 {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", connSize + http2Size},
		"HTTP/2, byte for byte ": {"PRI * HTTP/2.0", connSize + http2Size},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				listener, served := newPipes(), make(chan error)
				o := options(&memory{})
				o.Budget = flow.NewBudget(limit, 0)
				go func() { served <- New(o).Serve(ctx, listener, time.Second) }()
				var clients []net.Conn
				for range number {
					client := listener.dial()
					clients = append(clients, client)
					go io.Copy(io.Discard, client) //nolint:errcheck // frames of the server
					go func() {
						if strings.Contains(name, "byte") {
							for i := range test.sent {
								if _, err := io.WriteString(client, test.sent[i:i+1]); err != nil {
									return
								}
							}
							return
						}
						io.WriteString(client, test.sent) //nolint:errcheck // the server may close the connection
					}()
				}
				synctest.Wait()
				used := o.Budget.Held(arriving)
				if used > limit/2 || used < min(limit/2, number*test.each)-test.each {
					t.Errorf("connections hold %d bytes, want half of the budget, or %d each", used, test.each)
				}
				if !o.Budget.Reserve("shop", 1<<20) {
					t.Error("a namespace has no memory")
				}
				o.Budget.Release("shop", 1<<20)
				for _, client := range clients {
					client.Close()
				}
				synctest.Wait()
				if used := o.Budget.Used(); used != 0 {
					t.Errorf("%d bytes are held after all connections were closed", used)
				}
				stop()
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestConnectionOfQuietClient checks that the connections and heads of one client, which take all memory of connections, do not prevent
// another one from connecting.
func TestConnectionOfQuietClient(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := options(&memory{})
	o.Budget = flow.NewBudget(4<<20, 0)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- New(o).Serve(ctx, listener, time.Second) }()
	dialFrom := func(client string) net.Conn {
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}).Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(30 * time.Second)) //nolint:errcheck // reads fail instead
		return conn
	}
	for _, head := range []string{"POST /default/orders HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 40<<10), "P"} {
		for refused := false; !refused; {
			conn := dialFrom("127.0.0.1")
			io.WriteString(conn, head) //nolint:errcheck // the server may close the connection
			// The server either closes the connection or waits for the rest of the head.
			conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) //nolint:errcheck // reads fail instead
			_, err := conn.Read(make([]byte, 1))
			refused = !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
	conn := dialFrom("127.0.0.2")
	fmt.Fprint(conn, "POST /default/orders HTTP/1.1\r\nHost: x\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\nContent-Length: 0\r\n\r\n")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("while connections of another client hold %d bytes: %v", o.Budget.Held(arriving), err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusAccepted {
		t.Errorf("got %d", res.StatusCode)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestMemoryOfHeads checks that a head counts against its namespace while its request is served, and no longer against the connections; and
// that the next request of the connection is counted too.
func TestMemoryOfHeads(t *testing.T) {
	const size = 40 << 10
	synctest.Test(t, func(t *testing.T) {
		o := options(&memory{})
		o.Budget = flow.NewBudget(4<<20, 0)
		accepted := 0
		o.Accept = func(context.Context, eventing.Key, []*event.Event) error {
			accepted++
			if of, held := o.Budget.Held(arriving), o.Budget.Held("default"); of != connSize || held < headCopies*size {
				t.Errorf("the connection holds %d bytes and the namespace %d, want %d and the head", of, held, connSize)
			}
			return nil
		}
		ctx, stop := context.WithCancel(t.Context())
		listener, served := newPipes(), make(chan error)
		go func() { served <- New(o).Serve(ctx, listener, time.Second) }()
		client := listener.dial()
		answers := bufio.NewReader(client)
		const head = "POST /default/orders HTTP/1.1\r\nHost: x\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\nContent-Length: 0\r\nX-Large: "
		for range 3 {
			go fmt.Fprintf(client, "%s%s\r\n\r\n", head, strings.Repeat("x", size))
			res, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusAccepted {
				t.Errorf("got %d", res.StatusCode)
			}
			synctest.Wait()
			if used := o.Budget.Used(); used != connSize {
				t.Errorf("%d bytes are held between two requests", used)
			}
		}
		for o.Budget.Reserve("default", 16<<10) {
		}
		go fmt.Fprintf(client, "%s%s\r\n\r\n", head, strings.Repeat("x", size))
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || accepted != 3 {
			t.Errorf("got %d with Retry-After %q, want 503 without memory for the head", res.StatusCode, res.Header.Get("Retry-After"))
		}
		client.Close()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}
