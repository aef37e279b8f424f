package http1

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

const (
	// lingerTime and lingerBytes bound the input that is read after a rejection, so that the client receives the rejection.
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
	// unrouted is the namespace of requests whose heads have not arrived yet.
	unrouted = ""
)

// errStopped is the error of a connection that waits for a request when its server stops.
var errStopped = errors.New("server stopped")

// The states of a connection.
const (
	busy int32 = iota
	// waiting means that the connection reads the head of a request: stop may interrupt it.
	waiting
	stopping
)

// next is the action for a connection after a request.
type next int

const (
	keepConn next = iota
	closeConn
	lendConn
)

// conn is a connection of a client. One goroutine serves it.
type conn struct {
	server *Server
	conn   net.Conn
	raw    syscall.RawConn
	peer   netip.AddrPort
	// base is the parent of the contexts of exchanges. It is not canceled when the server stops.
	base context.Context

	state atomic.Int32
	// canceled returns an error once the server ends, before stop is called.
	canceled func() error
	// stopped is closed when stop returns.
	stopped chan struct{}

	// in is nil while no input is unread. size is the size of the current request's head.
	in   *input
	size int
	// memory is what the connection holds of the server's budget for a request that is still arriving; nil if it has held none.
	memory *flow.Arrival
	// readDeadline is the read deadline of the connection, now a time of the recent past.
	readDeadline, now time.Time
	// answered is true after the first request.
	answered bool

	// tls is nil without TLS. serverName is the name that the client sent in the handshake.
	tls        *TLSConn
	serverName string
	sender     sender
	// http2 is set if the connection speaks HTTP/2.
	http2 net.Conn

	// readFunc and tryFunc are the method values of read and tryRead, created once to save allocations. n and err are their results.
	readFunc, tryFunc func(fd uintptr) bool
	n                 int
	err               error

	x Exchange
}

// serve serves requests until the connection ends or belongs to the standard path permanently.
func (c *conn) serve() {
	var rejection *serving.Rejection
	var err error
	for {
		if rejection, err = c.next(); err != nil {
			break
		}
		if rejection == nil && c.in.req.preface && (c.answered || c.tls != nil) {
			// HTTP/2 with TLS is negotiated in the handshake.
			rejection = badVersion
		}
		if rejection != nil {
			c.rejected(rejection)
			break
		}
		if c.in.req.preface {
			if l := c.release(); l != nil {
				l.phase.Store(kept)
				c.http2 = l
			}
			return
		}
		then := lendConn
		if !c.in.req.standard && c.complete() {
			then = c.serveRequest()
		}
		if then == lendConn && !c.lend() {
			return
		}
		if then == closeConn {
			break
		}
		c.answered = true
	}
	if c.in != nil {
		if len(c.in.unread()) > 0 && !errors.Is(err, errStopped) {
			c.linger()
		}
		c.in.release()
	}
	c.conn.Close()
}

// serveRequest handles a request that has arrived completely.
func (c *conn) serveRequest() next {
	c.now = time.Now()
	x := &c.x
	*x = Exchange{c: c, start: c.now}
	size := x.size()
	served := c.server.Handler.ServeHTTP1(x)
	x.unwatch()
	closing := x.closes
	if x.output != nil {
		x.output.release()
	}
	*x = Exchange{}
	if !served {
		return lendConn
	}
	c.in.skip(size)
	if closing {
		return closeConn
	}
	return keepConn
}

// rejected answers a malformed request, as the connection's last.
func (c *conn) rejected(rejection *serving.Rejection) {
	c.reject(rejection, false, true) //nolint:errcheck // the connection ends anyway
	if c.server.Rejected == nil {
		return
	}
	var head *Head
	if c.size > 0 {
		head = &c.in.req.Head
	}
	c.server.Rejected(c.peer, rejection, head)
}

// next reads and parses the next head. An error means that the connection ended.
func (c *conn) next() (*serving.Rejection, error) {
	limit := c.server.maxHeaderBytes()
	scanned := 0
	c.size = 0
	skipped := false
	var deadline time.Time
	for {
		if c.in == nil || len(c.in.unread()) == 0 {
			if err := c.wait(); err != nil {
				return nil, err
			}
		}
		unread := c.in.unread()
		if !skipped && bytes.HasPrefix(unread, crlf) {
			// Some clients send an empty line after a body (RFC 9112 2.2).
			c.in.skip(len(crlf))
			skipped, scanned = true, 0
			continue
		}
		size, rejection := 0, (*serving.Rejection)(nil)
		if skipped || string(unread) != "\r" {
			size, rejection = headSize(unread, scanned)
		}
		switch {
		case rejection != nil:
			return rejection, nil
		case size > limit || size == 0 && len(unread) >= limit:
			return tooLarge, nil
		case size > 0:
			c.size = size
			return c.parse()
		}
		scanned = len(unread)
		if deadline.IsZero() {
			deadline = time.Now().Add(c.server.headerTimeout())
		}
		c.setReadDeadline(deadline)
		if size := c.in.sizeWithRoom(); !c.reserve(size) {
			if size > inSize {
				return tooLarge, nil
			}
			return overloaded, nil
		}
		c.in.makeRoom()
		if err := c.receive(); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return headTimeout, nil
			}
			return nil, err
		}
	}
}

// parse parses the head, and reads the part of the body that has arrived if the body fits into a buffer.
func (c *conn) parse() (*serving.Rejection, error) {
	req := &c.in.req
	for {
		rejection := req.parse(c.in.unread()[:c.size])
		if rejection != nil || req.standard || c.complete() || req.length > int64(maxBody-c.size) {
			return rejection, nil
		}
		// The head is parsed once more because its bytes move.
		if size := c.in.sizeFor(c.size + int(req.length)); size > inSize && !c.reserve(size) {
			return nil, nil
		}
		c.in.grow(c.size + int(req.length))
		if err := c.raw.Read(c.tryFunc); err != nil {
			return nil, err
		}
		if errors.Is(c.err, syscall.EAGAIN) {
			return req.parse(c.in.unread()[:c.size]), nil
		}
		if c.err != nil {
			return nil, c.err
		}
		c.in.end += c.n
	}
}

// reserve reserves the memory of an input buffer, and reports whether the budget allows it.
func (c *conn) reserve(size int) bool {
	if c.server.Budget == nil {
		return true
	}
	if c.memory == nil {
		c.memory = flow.NewArrival(c.server.Budget, unrouted, c.peer.Addr())
	}
	more := int64(size) - c.memory.Held()
	return more <= 0 || c.memory.Reserve(more)
}

// unreserve releases the reserved memory.
func (c *conn) unreserve() {
	if c.memory != nil && c.memory.Held() > 0 {
		c.memory.ReleaseAll()
	}
}

// complete reports whether the current request has arrived completely.
func (c *conn) complete() bool { return int64(len(c.in.unread())-c.size) >= c.in.req.length }

// wait waits for the first bytes of a request.
func (c *conn) wait() error {
	if c.now.IsZero() {
		c.now = time.Now()
	}
	// A deadline that is a little early is cheaper than a call for each request.
	if idle := c.server.idleTimeout(); c.readDeadline.Sub(c.now) < idle*3/4 || c.readDeadline.Sub(c.now) > idle {
		c.setReadDeadline(c.now.Add(idle))
	}
	return c.receive()
}

// receive reads a part of a head. It returns errStopped if the server stops and no input has arrived.
func (c *conn) receive() error {
	if !c.state.CompareAndSwap(busy, waiting) {
		<-c.stopped
		c.readDeadline = time.Time{}
		if !c.readArrived() {
			return errStopped
		}
		return nil
	}
	err := c.fill()
	if !c.state.CompareAndSwap(waiting, busy) {
		<-c.stopped
		c.readDeadline = time.Time{}
		if err != nil && !c.readArrived() {
			return errStopped
		}
		return nil
	}
	return err
}

// readArrived reads the input that arrived while the server began to stop, because its request must still be served. It
// reports whether any arrived.
func (c *conn) readArrived() bool {
	c.n, c.err = 0, nil
	if err := c.raw.Control(func(fd uintptr) { c.read(fd) }); err != nil || c.err != nil || c.n <= 0 {
		return false
	}
	c.in.end += c.n
	return c.conn.SetReadDeadline(time.Time{}) == nil
}

// stop ends the connection if it waits for a request or the rest of a head, otherwise after the current request.
func (c *conn) stop() {
	if c.state.Swap(stopping) == waiting {
		c.conn.SetReadDeadline(longAgo) //nolint:errcheck // fails on closed connections only, as does the read
	}
	close(c.stopped)
}

// fill reads at least one byte from the client.
func (c *conn) fill() error {
	if err := c.raw.Read(c.readFunc); err != nil {
		return err
	}
	c.in.end += c.n
	return c.err
}

// read reads into in. It returns false, without in, if no input has arrived.
func (c *conn) read(fd uintptr) bool {
	if c.in == nil {
		c.in = inputPool.Get().(*input)
	}
	c.n, c.err = c.readNow(fd)
	if !errors.Is(c.err, syscall.EAGAIN) {
		return true
	}
	if c.in.end == 0 {
		c.in.release()
		c.in = nil
	}
	return false
}

// tryRead reads available input without blocking.
func (c *conn) tryRead(fd uintptr) bool {
	c.n, c.err = c.readNow(fd)
	return true
}

// readNow reads available input into in without blocking.
func (c *conn) readNow(fd uintptr) (int, error) {
	if c.tls != nil {
		return c.tls.readNow(fd, c.in.room())
	}
	return sysRead(fd, c.in.room())
}

// send writes b to the client. It fails if the client reads nothing for the duration within; 0 is no limit.
func (c *conn) send(b []byte, within time.Duration) error {
	if c.tls != nil {
		err := c.tls.write(b, within)
		c.now = time.Now()
		return err
	}
	waited, err := c.sender.send(b, within)
	if waited {
		c.now = time.Now()
	}
	return err
}

// sender writes to a connection.
type sender struct {
	conn net.Conn
	raw  syscall.RawConn
	// writeFunc is the method value of write, created once to save allocations. writing is its input, n and err are its results.
	writeFunc func(fd uintptr) bool
	writing   []byte
	n         int
	err       error
}

// send writes b, and reports whether it waited for the client. It fails if the client reads nothing for the duration within; 0 is no
// limit.
func (s *sender) send(b []byte, within time.Duration) (waited bool, err error) {
	s.writing = b
	if err := s.raw.Write(s.writeFunc); err != nil {
		return false, err
	}
	s.writing = nil
	if s.err != nil && !errors.Is(s.err, syscall.EAGAIN) {
		return false, s.err
	}
	if s.n == len(b) {
		return false, nil
	}
	err = os.ErrDeadlineExceeded
	for b, n := b[s.n:], 1; n > 0 && errors.Is(err, os.ErrDeadlineExceeded); b = b[n:] {
		deadline := time.Time{}
		if within > 0 {
			deadline = time.Now().Add(within)
		}
		if err := s.conn.SetWriteDeadline(deadline); err != nil {
			return true, err
		}
		n, err = s.conn.Write(b)
	}
	if err != nil {
		return true, err
	}
	return true, s.conn.SetWriteDeadline(time.Time{})
}

func (s *sender) write(fd uintptr) bool {
	s.n, s.err = sysWrite(fd, s.writing)
	return true
}

// reject writes a rejection.
func (c *conn) reject(r *serving.Rejection, head, closing bool) error {
	return c.send(appendRejection(nil, r, head, closing), c.server.headerTimeout())
}

// linger closes the write side and reads for a while: closing a connection with unread input resets it, and the client's
// system then discards the response.
func (c *conn) linger() {
	conn, ok := c.conn.(interface{ CloseWrite() error })
	if !ok || conn.CloseWrite() != nil {
		return
	}
	if c.conn.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	for remaining := lingerBytes; remaining > 0; {
		n, err := c.conn.Read(c.in.buf)
		if err != nil {
			return
		}
		remaining -= n
	}
}

// setReadDeadline sets the deadline of reads.
func (c *conn) setReadDeadline(t time.Time) {
	if !t.Equal(c.readDeadline) {
		c.readDeadline = t
		c.conn.SetReadDeadline(t) //nolint:errcheck // fails on closed connections only, as do the reads
	}
}

// closing reports whether the current response is the connection's last.
func (c *conn) closing() bool {
	retired := c.server.Retired
	return c.in.req.close || c.canceled() != nil || retired != nil && retired.Load()
}

// isHead reports whether the current request is a HEAD request, whose response has no body.
func (c *conn) isHead() bool { return string(c.in.req.Method) == http.MethodHead }
