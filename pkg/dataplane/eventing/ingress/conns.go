package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// arriving is the account of connections and of heads that are still arriving. It is not a valid name of a namespace.
	arriving = "*events"
	// connSize is the memory of a connection: its goroutine and the buffers of net/http. They hold heads up to freeHead bytes.
	connSize, freeHead = 16 << 10, 4 << 10
	// http2Size is the additional memory of an HTTP/2 connection: a frame, unread bodies, and frames that are written.
	http2Size = maxFrame + maxReceiveBuffer + 16<<10
	// record is the size of a TLS record, which bounds the input that is read ahead. tlsSize is the additional memory of a connection with
	// TLS: a record in each direction.
	record, tlsSize = 18 << 10, 2 * record
	// headStep is the size of the parts in which memory is reserved for a head, headCopies the number of copies of it.
	headStep, headCopies = 8 << 10, 2
)

// noPreface is the value of conn.matched if bytes are not compared with preface.
const noPreface = -1

// preface is the beginning of the first bytes of an HTTP/2 connection.
const preface = "PRI * "

// errConnMemory is the error of connections that exceed the memory budget.
var errConnMemory = errors.New("the memory budget for connections is exhausted")

// conns is a listener whose connections count against the memory budget, with the heads of requests while they arrive, and unread HTTP/2
// frames. It closes connections that exceed the budget.
type conns struct {
	net.Listener
	budget *flow.Budget
	// tls is true if the connections begin with a handshake, which counts as part of the first head.
	tls bool
}

// Accept implements net.Listener.
func (l conns) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, size := &conn{Conn: nc, memory: flow.NewArrival(l.budget, arriving, flow.ClientOf(nc.RemoteAddr())), buffer: freeHead}, int64(connSize)
		if l.tls {
			c.buffer += record
			// The preface of HTTP/2 is encrypted: see negotiated.
			c.matched, size = noPreface, size+tlsSize
		}
		if c.reserve(size) {
			c.inHead.Store(true)
			return c, nil
		}
		nc.Close()
	}
}

// conn is a connection of conns. A request whose head fits into the buffers of the connection needs no lock.
type conn struct {
	net.Conn
	// buffer is the number of bytes of a head that fit into the buffers of the connection.
	buffer int
	// inHead is true while the head of a request is read. Only then, the goroutine that serves the connection uses head, the number of
	// bytes that were read of it, and free, the number of them that are reserved; matched is the number of bytes that equal the beginning
	// of preface.
	inHead              atomic.Bool
	head, free, matched int

	// mu guards the fields below: the memory that is reserved, and whether the connection is closed.
	mu     sync.Mutex
	memory *flow.Arrival
	closed bool
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.inHead.Load() && !c.arrived(b[:n]) {
		return 0, errConnMemory
	}
	return n, err
}

// arrived counts bytes of a head, and reports whether the budget allows them.
func (c *conn) arrived(b []byte) bool {
	if c.matched >= 0 && c.matched < len(preface) {
		for i := 0; i < len(b) && c.matched < len(preface) && b[i] == preface[c.matched]; i++ {
			c.matched++
		}
		if c.matched == len(preface) {
			// From now on, flow control bounds the unread bytes.
			c.inHead.Store(false)
			return c.reserve(http2Size)
		}
	}
	if c.head += len(b); c.head <= c.buffer+c.free {
		return true
	}
	c.free += headStep
	return c.reserve(headCopies * headStep)
}

// headRead ends the head of a request, and reports whether it is small. Otherwise its memory counts against the namespace of the request.
func (c *conn) headRead() (small bool) {
	if !c.inHead.Load() {
		return false
	}
	c.inHead.Store(false)
	if c.free > 0 {
		c.unreserve(headCopies * int64(c.free))
	}
	small = c.head <= freeHead
	c.head, c.free = 0, 0
	return small
}

// idle begins the head of the next request.
func (c *conn) idle() {
	if c.matched < len(preface) {
		c.inHead.Store(true)
	}
}

// reserve reserves memory until unreserve or Close, and reports whether the budget allows it.
func (c *conn) reserve(bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.closed && c.memory.Reserve(bytes)
}

func (c *conn) unreserve(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.memory.Release(bytes)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.memory.ReleaseAll()
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

func connContext(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, connOf(nc))
}

// connOf returns the connection below TLS, or the connection itself. It is nil for connections of other listeners.
func connOf(nc net.Conn) *conn {
	if secure, ok := nc.(*tls.Conn); ok {
		nc = secure.NetConn()
	}
	c, _ := nc.(*conn)
	return c
}

// negotiated counts the memory of HTTP/2 on a connection with TLS, and reports whether the budget allows it.
func (c *conn) negotiated(nc net.Conn) bool {
	secure, ok := nc.(*tls.Conn)
	if !ok || c.matched != noPreface || !c.inHead.Load() || secure.ConnectionState().NegotiatedProtocol != "h2" {
		return true
	}
	c.matched = len(preface)
	c.headRead()
	return c.reserve(http2Size)
}

// connState is the ConnState hook of the server.
func connState(nc net.Conn, state http.ConnState) {
	c := connOf(nc)
	switch {
	case c == nil:
	case state == http.StateActive:
		if !c.negotiated(nc) {
			nc.Close()
		}
	case state == http.StateIdle:
		c.idle()
	}
}

// endHead ends the head of a request on its connection. It returns the size of the head, or 0 if it fits into the buffers of the connection.
func endHead(r *http.Request) int64 {
	if c, ok := r.Context().Value(connKey{}).(*conn); !ok || c == nil || c.headRead() {
		return 0
	}
	return headSize(r)
}

// headSize returns the size of a head that has arrived.
func headSize(r *http.Request) int64 {
	size := len(r.RequestURI)
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + len(value)
		}
	}
	return int64(size)
}
