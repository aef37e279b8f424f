package http1

import (
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"
)

// maxAhead bounds the input that is read ahead of the next requests while the standard path serves one, in bytes.
const maxAhead = 4 << 10

// The bytes that net/http reads in place of malformed framing of a body, and rejects in every position. In a chunk
// extension, net/http rejects only a bare LF.
const (
	malformed          = "\x00\r\n\r\n"
	malformedExtension = "\n"
)

// The phases of a connection on the standard path.
const (
	lent int32 = iota
	// idle means that the request is answered, returning that net/http has read EOF in place of the next request.
	idle
	returning
	returned
	// kept means that the connection never returns: it is closed, hijacked, or HTTP/2.
	kept
)

// lentConn is a connection that is lent to the standard path for one request. Reads return this request, up to the end
// of its framing, and EOF when net/http waits for the next one. So this package parses every request.
type lentConn struct {
	net.Conn
	raw syscall.RawConn
	// read has the input that was read from the client, but not yet by the standard path.
	read []byte
	// remaining is the number of unread bytes of the head and of a body with a Content-Length. A chunked body follows them.
	remaining        int64
	chunked, invalid bool
	body             chunks

	phase atomic.Int32
	// done receives one value when the standard path is finished: true if the connection returns.
	done chan bool
}

// release returns the connection with its unread input, which begins with the current request. It returns nil if the connection is closed.
func (c *conn) release() *lentConn {
	l := &lentConn{
		Conn: c.conn, raw: c.raw, read: append([]byte(nil), c.in.unread()...),
		remaining: int64(c.size) + max(c.in.req.length, 0), chunked: c.in.req.chunked, done: make(chan bool, 1),
	}
	c.in.release()
	c.in = nil
	c.unreserve()
	if c.conn.SetDeadline(time.Time{}) != nil {
		c.conn.Close()
		return nil
	}
	if c.tls != nil {
		c.tls.transport.sender = nil
	}
	return l
}

// lend lends the connection to the standard path for the current request. It reports whether the connection returned.
func (c *conn) lend() bool {
	l := c.release()
	if l == nil {
		return false
	}
	c.server.Standard(l)
	if !<-l.done {
		return false
	}
	if c.tls != nil {
		c.tls.transport.sender = &c.sender
	}
	if c.conn.SetDeadline(time.Time{}) != nil {
		c.conn.Close()
		return false
	}
	c.now, c.readDeadline = time.Now(), time.Time{}
	if len(l.read) > 0 {
		c.in = inputPool.Get().(*input)
		c.in.grow(len(l.read))
		c.in.end = copy(c.in.buf, l.read)
	}
	return true
}

// ConnState is the ConnState hook for the http.Server that serves lent connections: it records that a request is answered.
func ConnState(conn net.Conn, state http.ConnState) {
	l, ok := conn.(*lentConn)
	if !ok {
		return
	}
	switch state {
	case http.StateIdle:
		l.phase.CompareAndSwap(lent, idle)
	case http.StateHijacked:
		l.keep()
	}
}

// keep makes the connection the standard path's permanently, unless it has already returned.
func (l *lentConn) keep() {
	for phase := l.phase.Load(); phase < returned; phase = l.phase.Load() {
		if l.phase.CompareAndSwap(phase, kept) {
			l.done <- false
		}
	}
}

// Read implements net.Conn.
func (l *lentConn) Read(b []byte) (int, error) {
	switch l.phase.Load() {
	case kept:
		if len(l.read) > 0 {
			return l.copyRead(b, len(b)), nil
		}
		return l.Conn.Read(b)
	case idle:
		if l.ended() {
			l.phase.CompareAndSwap(idle, returning)
		}
		return 0, io.EOF
	case returning, returned:
		return 0, io.EOF
	}
	if l.ended() {
		return l.watch()
	}
	return l.readRequest(b)
}

// readRequest reads more of the request.
func (l *lentConn) readRequest(b []byte) (int, error) {
	switch {
	case len(b) == 0:
		return 0, nil
	case l.invalid && len(l.read) == 0:
		return 0, io.EOF
	case l.invalid:
		return l.copyRead(b, len(b)), nil
	case len(l.read) > 0:
		n := l.measure(l.read[:min(len(b), len(l.read))])
		if l.invalid {
			l.read = append(l.read[:n:n], l.marker()...)
			n = len(b)
		}
		return l.copyRead(b, n), nil
	}
	if !l.chunked {
		b = b[:min(l.remaining, int64(len(b)))]
	}
	n, err := l.Conn.Read(b)
	if n == 0 {
		return 0, err
	}
	size := l.measure(b[:n])
	if !l.invalid {
		l.read = append(l.read, b[size:n]...)
		return size, err
	}
	l.read = []byte(l.marker())
	if size == 0 {
		return l.copyRead(b, len(b)), nil
	}
	return size, nil
}

// copyRead copies at most n bytes that were read before.
func (l *lentConn) copyRead(b []byte, n int) int {
	n = copy(b, l.read[:min(n, len(l.read))])
	if l.read = l.read[n:]; len(l.read) == 0 {
		l.read = nil
	}
	return n
}

// measure returns how many of the next bytes belong to the request. It sets invalid if their framing is malformed. b is
// not empty.
func (l *lentConn) measure(b []byte) int {
	n := int(min(l.remaining, int64(len(b))))
	l.remaining -= int64(n)
	if l.remaining > 0 || !l.chunked || n == len(b) {
		return n
	}
	size, _, err := l.body.feed(b[n:])
	l.invalid = err != nil
	return n + size
}

// marker returns the bytes to read in place of the malformed framing.
func (l *lentConn) marker() string {
	if l.body.state == chunkExtension {
		return malformedExtension
	}
	return malformed
}

// ended reports whether the request was read completely.
func (l *lentConn) ended() bool {
	return l.remaining == 0 && (!l.chunked || l.body.state == chunksDone)
}

// watch waits until the client closes its connection or a deadline passes. Bytes that arrive meanwhile are the start of the
// next requests.
func (l *lentConn) watch() (int, error) {
	var ahead [512]byte
	for len(l.read) < maxAhead {
		n, err := l.Conn.Read(ahead[:])
		l.read = append(l.read, ahead[:n]...)
		if err != nil {
			return 0, err
		}
	}
	return 0, l.raw.Read(func(uintptr) bool { return false })
}

// Close returns the connection if its request is answered, and closes it otherwise.
func (l *lentConn) Close() error {
	if l.phase.CompareAndSwap(returning, returned) {
		l.done <- true
		return nil
	}
	l.keep()
	if l.phase.Load() == returned {
		return nil
	}
	return l.Conn.Close()
}

// CloseWrite closes the write side. net/http calls it so that the client receives the last response.
func (l *lentConn) CloseWrite() error {
	if conn, ok := l.Conn.(interface{ CloseWrite() error }); ok {
		return conn.CloseWrite()
	}
	return nil
}
