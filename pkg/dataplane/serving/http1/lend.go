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

// handedOver is a connection that is lent to the standard path for one request. Reads return this request, up to the end
// of its framing, and EOF when net/http waits for the next one. So this package parses every request.
type handedOver struct {
	net.Conn
	raw syscall.RawConn
	// read has the input that was read from the client, but not yet by the standard path.
	read []byte
	// left is the number of unread bytes of the head and of a body with a Content-Length. A chunked body follows them.
	left             int64
	chunked, invalid bool
	body             chunks

	phase atomic.Int32
	// over receives one value when the standard path is finished: true if the connection returns.
	over chan bool
}

// handOver lends the connection to the standard path for the current request, or permanently if it is HTTP/2. It reports
// whether the connection returned.
func (c *conn) handOver() bool {
	h := &handedOver{
		Conn: c.conn, raw: c.raw, read: append([]byte(nil), c.in.unread()...),
		left: int64(c.size) + max(c.in.req.length, 0), chunked: c.in.req.chunked, over: make(chan bool, 1),
	}
	if c.in.req.preface {
		h.phase.Store(kept)
		h.over <- false
	}
	c.in.release()
	c.in = nil
	c.unreserve()
	if c.conn.SetDeadline(time.Time{}) != nil {
		c.conn.Close()
		return false
	}
	c.server.Standard(h)
	if !<-h.over {
		return false
	}
	if c.conn.SetDeadline(time.Time{}) != nil {
		c.conn.Close()
		return false
	}
	c.now, c.readDeadline = time.Now(), time.Time{}
	if len(h.read) > 0 {
		c.in = inputPool.Get().(*input)
		c.in.hold(len(h.read))
		c.in.end = copy(c.in.buf, h.read)
	}
	return true
}

// ConnState is the ConnState hook for the http.Server that serves lent connections: it records that a request is answered.
func ConnState(conn net.Conn, state http.ConnState) {
	h, ok := conn.(*handedOver)
	if !ok {
		return
	}
	switch state {
	case http.StateIdle:
		h.phase.CompareAndSwap(lent, idle)
	case http.StateHijacked:
		h.keep()
	}
}

// keep makes the connection the standard path's permanently, unless it has already returned.
func (h *handedOver) keep() {
	for phase := h.phase.Load(); phase < returned; phase = h.phase.Load() {
		if h.phase.CompareAndSwap(phase, kept) {
			h.over <- false
		}
	}
}

// Read implements net.Conn.
func (h *handedOver) Read(b []byte) (int, error) {
	switch h.phase.Load() {
	case kept:
		if len(h.read) > 0 {
			return h.take(b, len(b)), nil
		}
		return h.Conn.Read(b)
	case idle:
		if h.ended() {
			h.phase.CompareAndSwap(idle, returning)
		}
		return 0, io.EOF
	case returning, returned:
		return 0, io.EOF
	}
	if h.ended() {
		return h.watch()
	}
	return h.readRequest(b)
}

// readRequest reads more of the request.
func (h *handedOver) readRequest(b []byte) (int, error) {
	switch {
	case len(b) == 0:
		return 0, nil
	case h.invalid && len(h.read) == 0:
		return 0, io.EOF
	case h.invalid:
		return h.take(b, len(b)), nil
	case len(h.read) > 0:
		n := h.measure(h.read[:min(len(b), len(h.read))])
		if h.invalid {
			h.read = append(h.read[:n:n], h.marker()...)
			n = len(b)
		}
		return h.take(b, n), nil
	}
	if !h.chunked {
		b = b[:min(h.left, int64(len(b)))]
	}
	n, err := h.Conn.Read(b)
	if n == 0 {
		return 0, err
	}
	size := h.measure(b[:n])
	if !h.invalid {
		h.read = append(h.read, b[size:n]...)
		return size, err
	}
	h.read = []byte(h.marker())
	if size == 0 {
		return h.take(b, len(b)), nil
	}
	return size, nil
}

// take copies at most n bytes that were read before.
func (h *handedOver) take(b []byte, n int) int {
	n = copy(b, h.read[:min(n, len(h.read))])
	if h.read = h.read[n:]; len(h.read) == 0 {
		h.read = nil
	}
	return n
}

// measure returns how many of the next bytes belong to the request. It sets invalid if their framing is malformed. b is
// not empty.
func (h *handedOver) measure(b []byte) int {
	n := int(min(h.left, int64(len(b))))
	h.left -= int64(n)
	if h.left > 0 || !h.chunked || n == len(b) {
		return n
	}
	size, _, err := h.body.feed(b[n:])
	h.invalid = err != nil
	return n + size
}

// marker returns the bytes to read in place of the malformed framing.
func (h *handedOver) marker() string {
	if h.body.state == chunkExtension {
		return malformedExtension
	}
	return malformed
}

// ended reports whether the request was read completely.
func (h *handedOver) ended() bool {
	return h.left == 0 && (!h.chunked || h.body.state == chunksDone)
}

// watch waits until the client closes its connection or a deadline passes. Bytes that arrive meanwhile are the start of the
// next requests.
func (h *handedOver) watch() (int, error) {
	var ahead [512]byte
	for len(h.read) < maxAhead {
		n, err := h.Conn.Read(ahead[:])
		h.read = append(h.read, ahead[:n]...)
		if err != nil {
			return 0, err
		}
	}
	return 0, h.raw.Read(func(uintptr) bool { return false })
}

// Close returns the connection if its request is answered, and closes it otherwise.
func (h *handedOver) Close() error {
	if h.phase.CompareAndSwap(returning, returned) {
		h.over <- true
		return nil
	}
	h.keep()
	if h.phase.Load() == returned {
		return nil
	}
	return h.Conn.Close()
}

// CloseWrite closes the write side. net/http calls it so that the client receives the last response.
func (h *handedOver) CloseWrite() error {
	if conn, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return conn.CloseWrite()
	}
	return nil
}
