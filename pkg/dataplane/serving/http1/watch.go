package http1

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// errClientGone is the error of an exchange whose client closed its connection or the client's half of it.
var errClientGone = errors.New("client closed the connection")

// longAgo is a deadline that interrupts reads immediately.
var longAgo = time.Unix(1, 0)

// watch reads from a client while its request is served, to detect that the client closes its connection. The bytes read are
// the start of the next requests.
type watch struct {
	conn net.Conn
	// buf[:end] has the bytes that were read. end may be read once done is closed.
	buf  []byte
	end  int
	done chan struct{}
	// ctx is canceled when the client closes its connection.
	ctx      context.Context
	cancel   context.CancelCauseFunc
	stopping atomic.Bool

	// mu guards the fields below.
	mu sync.Mutex
	// upstream is interrupted when the client closes its connection, so that the backend and the goroutine that uses it notice.
	upstream net.Conn
	gone     bool
}

// startWatch starts a watch of conn. The caller must call stop. ctx is the parent of the watch's context.
func startWatch(ctx context.Context, conn net.Conn, buf []byte) *watch {
	w := &watch{conn: conn, buf: buf, done: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	conn.SetReadDeadline(time.Time{}) //nolint:errcheck // fails on closed connections only, as does the read
	go w.run()
	return w
}

func (w *watch) run() {
	defer close(w.done)
	// A client that fills the buffer is still connected.
	for w.end < len(w.buf) {
		n, err := w.conn.Read(w.buf[w.end:])
		w.end += n
		if err == nil {
			continue
		}
		if !w.stopping.Load() {
			w.closed()
		}
		return
	}
}

func (w *watch) closed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	if w.upstream != nil {
		interrupt(w.upstream)
	}
	w.cancel(errClientGone)
}

// interrupt ends the stream to a backend, and reads and writes of the connection. The exchange closes it.
func interrupt(upstream net.Conn) {
	if half, ok := upstream.(interface{ CloseWrite() error }); ok {
		half.CloseWrite() //nolint:errcheck // fails on closed connections only
	}
	upstream.SetDeadline(longAgo) //nolint:errcheck // fails on closed connections only
}

// attach sets the connection to a backend that is interrupted when the client closes its connection. Its deadlines may not be extended
// after that without a check of clientGone.
func (w *watch) attach(upstream net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.upstream = upstream
	if w.gone {
		interrupt(upstream)
	}
}

// detach removes the connection to the backend, and reports whether the client is still connected.
func (w *watch) detach() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.upstream = nil
	return !w.gone
}

// clientGone reports whether the client has closed its connection.
func (w *watch) clientGone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// stop stops the watch and returns the number of bytes that it read. It changes the connection's read deadline.
func (w *watch) stop() int {
	w.stopping.Store(true)
	w.conn.SetReadDeadline(longAgo) //nolint:errcheck // fails on closed connections only, as does the read
	<-w.done
	w.cancel(nil)
	return w.end
}
