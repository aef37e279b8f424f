package http1

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// errClientGone is why an exchange ends whose client closed its connection, or its half of it.
var errClientGone = errors.New("client went away")

// longAgo is a deadline that ends reads at once.
var longAgo = time.Unix(1, 0)

// watch reads from a client while its request is worked on, to notice that it goes away. What comes is the start
// of the next requests.
type watch struct {
	conn net.Conn
	// buf is where to read to; end, how far it did so, may be read when done is closed.
	buf  []byte
	end  int
	done chan struct{}
	// ctx ends when the client goes away.
	ctx      context.Context
	cancel   context.CancelCauseFunc
	stopping atomic.Bool

	// mu guards what follows.
	mu sync.Mutex
	// upstream is closed when the client goes away, so that the instance notices, and who waits for it.
	upstream net.Conn
	gone     bool
}

// startWatch watches conn until stop. ctx is what the watch's own context derives from.
func startWatch(ctx context.Context, conn net.Conn, buf []byte) *watch {
	w := &watch{conn: conn, buf: buf, done: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	conn.SetReadDeadline(time.Time{}) //nolint:errcheck // fails on closed connections only, as does the read
	go w.run()
	return w
}

func (w *watch) run() {
	defer close(w.done)
	// A client that sends more than there is room for is there.
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
		w.upstream.Close()
	}
	w.cancel(errClientGone)
}

// attach has a connection to an instance closed when the client goes away.
func (w *watch) attach(upstream net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.upstream = upstream
	if w.gone {
		upstream.Close()
	}
}

// detach ends what attach began, and tells whether the client still is there.
func (w *watch) detach() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.upstream = nil
	return !w.gone
}

// left tells whether the client went away.
func (w *watch) left() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// stop ends the watch, and says how many bytes it read. The connection's read deadline is to be set anew.
func (w *watch) stop() int {
	w.stopping.Store(true)
	w.conn.SetReadDeadline(longAgo) //nolint:errcheck // fails on closed connections only, as does the read
	<-w.done
	w.cancel(nil)
	return w.end
}
