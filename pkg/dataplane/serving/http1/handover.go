package http1

import (
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"
)

// maxAhead bounds what is read of the next requests while the standard path works on one, in bytes.
const maxAhead = 4 << 10

// What is read in place of a malformed part of a body's framing, for net/http to refuse: bytes that are malformed
// wherever they replace others. Any byte but a bare LF is valid in a chunk extension for net/http.
const (
	malformed          = "\x00\r\n\r\n"
	malformedExtension = "\n"
)

// What the standard path does with a connection.
const (
	lent int32 = iota
	// idle is when its request is answered, returning when it was told that there is no other one.
	idle
	returning
	returned
	// kept is for good: closed, hijacked, or HTTP/2.
	kept
)

// handedOver is a connection that the standard path has for one request. It reads that one, as far as its head and
// its framing go, and the end once net/http waits for another one. So no request gets past this package's parser.
type handedOver struct {
	net.Conn
	raw syscall.RawConn
	// read is what was read from the client and not yet by the standard path.
	read []byte
	// left is what is left of the head, and of a body by length; a body in chunks follows.
	left             int64
	chunked, invalid bool
	body             chunks

	phase atomic.Int32
	// over gets whether there can be further requests when the standard path has done.
	over chan bool
}

// handOver gives the connection to the standard path, for the current request or, with HTTP/2, for good. It tells
// whether it came back.
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

// ConnState is for the http.Server that serves what is handed over: it notes that a request is answered.
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

// keep has the connection never come back, unless it has already.
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

// take copies what was read before, n bytes at most.
func (h *handedOver) take(b []byte, n int) int {
	n = copy(b, h.read[:min(n, len(h.read))])
	if h.read = h.read[n:]; len(h.read) == 0 {
		h.read = nil
	}
	return n
}

// measure says how many of the next bytes, of which there is one at least, belong to the request, or are valid.
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

// marker returns what is read in place of the malformed part.
func (h *handedOver) marker() string {
	if h.body.state == chunkExtension {
		return malformedExtension
	}
	return malformed
}

// ended tells whether all of the request was read.
func (h *handedOver) ended() bool {
	return h.left == 0 && (!h.chunked || h.body.state == chunksDone)
}

// watch waits until the client goes away, or a deadline. What it sends meanwhile is the start of the next requests.
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

// Close gives the connection back if its request is answered, and closes it otherwise.
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

// CloseWrite ends what is written to the connection: net/http does so to have its last answer read.
func (h *handedOver) CloseWrite() error {
	if conn, ok := h.Conn.(interface{ CloseWrite() error }); ok {
		return conn.CloseWrite()
	}
	return nil
}
