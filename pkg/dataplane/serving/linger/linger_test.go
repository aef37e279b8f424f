package linger

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

// upstream is a connection to a backend. The other end of its pipe is the backend.
type upstream struct {
	net.Conn
	halfClosed, closed atomic.Bool
	err                error
}

func (u *upstream) CloseWrite() error {
	u.halfClosed.Store(true)
	return u.err
}

func (u *upstream) Close() error {
	u.closed.Store(true)
	return u.Conn.Close()
}

// TestAwait covers the time at which an abandoned request loses its place, by the behavior of its backend (serving 8-7).
func TestAwait(t *testing.T) {
	for name, test := range map[string]struct {
		// backend is the behavior of the backend.
		backend func(conn net.Conn)
		// reset is true if the backend has reset the connection.
		reset bool
		limit int64
		// released is the time at which the place ends, closed the time at which the connection is closed.
		released, closed time.Duration
	}{
		"ends":               {func(conn net.Conn) { wait(3 * time.Second); conn.Close() }, false, 1 << 20, 3 * time.Second, 3 * time.Second},
		"responds, and ends": {func(conn net.Conn) { wait(3 * time.Second); write(conn, 1<<20); conn.Close() }, false, 1 << 20, 3 * time.Second, 3 * time.Second},
		"does not end":       {func(net.Conn) {}, false, 1 << 20, Bound, Bound},
		"sends without end":  {func(conn net.Conn) { write(conn, 1<<30) }, false, 1 << 20, Bound, 0},
		"has reset":          {func(net.Conn) {}, true, 1 << 20, 0, 0},
		"ends, no memory":    {func(conn net.Conn) { conn.Close() }, false, 0, Bound, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer far.Close()
				conn := &upstream{Conn: near}
				if test.reset {
					conn.err = errors.New("reset")
				}
				go test.backend(far)
				budget := flow.NewBudget(test.limit, 0)
				began, released := time.Now(), make(chan time.Duration, 2)
				NewPlace(budget, "a", func() { released <- time.Since(began) }).Await(conn)
				if !conn.halfClosed.Load() {
					t.Error("the stream to the backend was not ended at once")
				}
				for !conn.closed.Load() {
					wait(100 * time.Millisecond)
				}
				if took := time.Since(began); took < test.closed || took > test.closed+200*time.Millisecond {
					t.Errorf("the connection was closed after %s, want %s", took, test.closed)
				}
				if took := <-released; took != test.released {
					t.Errorf("the place ended after %s, want %s", took, test.released)
				}
				synctest.Wait()
				if len(released) > 0 || budget.Used() != 0 {
					t.Errorf("the place ended %d times more, and holds %d bytes", len(released), budget.Used())
				}
			})
		})
	}
}

// TestMemory checks that the memory of many abandoned requests is in the budget.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		budget := flow.NewBudget(8*size, 0)
		var released atomic.Int64
		for range 100 {
			near, far := net.Pipe()
			defer far.Close()
			NewPlace(budget, "a", func() { released.Add(1) }).Await(&upstream{Conn: near})
		}
		synctest.Wait()
		if budget.Used() != 4*size || released.Load() != 0 {
			t.Errorf("%d bytes are held, and %d places ended; want half of the budget, and none", budget.Used(), released.Load())
		}
		wait(Bound)
		synctest.Wait()
		if budget.Used() != 0 || released.Load() != 100 {
			t.Errorf("%d bytes are held, and %d places ended; want none and all", budget.Used(), released.Load())
		}
	})
}

// TestOtherPlaces covers places without a connection, and without a limit.
func TestOtherPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, released := time.Now(), make(chan time.Duration, 2)
		place := NewPlace(nil, "a", func() { released <- time.Since(began) })
		place.Expire()
		if took := <-released; took != Bound {
			t.Errorf("a place without a connection ended after %s", took)
		}
		near, far := net.Pipe()
		defer far.Close()
		conn := &upstream{Conn: near}
		(*Place)(nil).Await(conn)
		if !conn.closed.Load() {
			t.Error("the connection of a request without a limit stays open")
		}
		(*Place)(nil).Release()
		(*Place)(nil).Expire()
	})
}

func wait(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // the clock is synctest's

func write(conn net.Conn, size int) {
	for block := make([]byte, 64<<10); size > 0; size -= len(block) {
		if _, err := conn.Write(block); err != nil {
			return
		}
	}
}
