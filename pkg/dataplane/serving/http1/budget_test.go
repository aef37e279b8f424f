package http1

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

// TestPartialHeads sends incomplete large heads. The memory that they hold stays within the budget, further heads are rejected
// with 431, and complete requests are served.
func TestPartialHeads(t *testing.T) {
	const limit, clients = 1 << 20, 100
	budget := flow.NewBudget(limit, 0)
	s := &Server{Handler: newFakeRouter(answering(t, hi, nil)), Budget: budget, HeaderTimeout: patience}
	address := serve(t, s)
	most := int64(0)
	conns := make([]net.Conn, clients)
	refusals := 0
	for i := range conns {
		conns[i] = dial(t, address)
		write(t, conns[i], "GET / HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("x", 50_000))
		most = max(most, budget.Used())
	}
	for i := range conns {
		// The rest of each head is sent: clients that were not rejected are served.
		if _, err := conns[i].Write([]byte("\r\n\r\n")); err != nil {
			refusals++
			continue
		}
		head := make([]byte, len("HTTP/1.1 200"))
		switch _, err := conns[i].Read(head); {
		case err != nil || strings.HasSuffix(string(head), "431"):
			refusals++
		case !strings.HasSuffix(string(head), "200"):
			t.Errorf("a client got %q", head)
		}
		most = max(most, budget.Used())
		conns[i].Close()
	}
	if most > limit || refusals == 0 || refusals == clients {
		t.Errorf("%d bytes are held, %d of %d clients refused; want at most %d bytes, and some clients", most, refusals, clients, limit)
	}
	conn := dial(t, address)
	write(t, conn, getA)
	expect(t, conn, hi)
}

// TestHeadOfQuietClient expects that heads of one client, which take all memory of heads that are arriving, do not refuse the one of another.
func TestHeadOfQuietClient(t *testing.T) {
	budget := flow.NewBudget(4<<20, 0)
	address := serve(t, &Server{Handler: newFakeRouter(answering(t, hi, nil)), Budget: budget, HeaderTimeout: patience})
	begin := "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 50_000)
	for refused := false; !refused; {
		conn := dial(t, address)
		write(t, conn, begin)
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err := conn.Read(make([]byte, 1))
		refused = !errors.Is(err, os.ErrDeadlineExceeded)
	}
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	write(t, conn, begin)
	<-time.After(10 * time.Millisecond)
	write(t, conn, "\r\n\r\n")
	expect(t, conn, hi)
}

// TestLargeResponseHead expects status 503 for a response head that exceeds the memory budget.
func TestLargeResponseHead(t *testing.T) {
	app := answering(t, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 3*respSize)+"\r\nContent-Length: 0\r\n\r\n", nil)
	router := newFakeRouter(app)
	router.budget = flow.NewBudget(respSize, 0)
	conn := dial(t, serve(t, &Server{Handler: router}))
	write(t, conn, getA)
	got := make([]byte, len("HTTP/1.1 503"))
	if _, err := conn.Read(got); err != nil || string(got) != "HTTP/1.1 503" {
		t.Errorf("got %q, %v", got, err)
	}
}
