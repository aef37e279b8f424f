package http1

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// closeTimeout bounds the time to send the alert that ends a TLS connection.
const closeTimeout = time.Second

// TLSConn is a connection of a client with TLS. ServeConn reads it without a buffer while the client sends nothing, and limits stalled
// writes instead of slow ones, as for connections without TLS.
type TLSConn struct {
	*tls.Conn
	transport *transport
}

// NewTLSConn returns a connection with TLS. The caller performs the handshake.
func NewTLSConn(conn net.Conn, config *tls.Config) *TLSConn {
	t := &transport{Conn: conn}
	return &TLSConn{Conn: tls.Server(t, config), transport: t}
}

// limit sets the time limit of writes by TLS itself, such as responses to key updates, which happen during reads.
func (t *TLSConn) limit(within time.Duration) {
	t.transport.unasked = within
	t.transport.within.Store(int64(within))
}

// Close sends an alert, at most for closeTimeout, and closes the connection.
func (t *TLSConn) Close() error {
	t.transport.within.Store(int64(closeTimeout))
	// TLS waits for a write in progress before it sends the alert.
	t.transport.SetWriteDeadline(time.Now().Add(closeTimeout)) //nolint:errcheck // fails on closed connections only
	return t.Conn.Close()
}

// readNow reads available bytes without blocking, like sysRead. fd is the file of the connection.
func (t *TLSConn) readNow(fd uintptr, b []byte) (int, error) {
	t.transport.fd, t.transport.polling = fd, true
	n, err := t.Read(b)
	t.transport.polling = false
	switch {
	case n > 0:
		// An error is returned by the next call too.
		return n, nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, syscall.EAGAIN
	}
	return 0, err
}

// write writes b. It fails if the client reads nothing for the duration within; 0 is no limit.
func (t *TLSConn) write(b []byte, within time.Duration) error {
	t.transport.within.Store(int64(within))
	_, err := t.Write(b)
	t.transport.within.Store(int64(t.transport.unasked))
	return err
}

// transport is the connection below TLS.
type transport struct {
	net.Conn
	// polling is true while reads do not block. fd is the file to read then. One goroutine reads at a time.
	polling bool
	fd      uintptr
	// sender, if not nil, writes. It is nil while the standard path has the connection. TLS serializes writes. within is the time
	// limit of its writes, unasked the limit of writes by TLS itself. failed is the error of a write, and of all after it: TLS
	// continues after a failed response to a key update, and each of these would wait again.
	sender  *sender
	within  atomic.Int64
	unasked time.Duration
	failed  error
}

// Read implements net.Conn. The error for no available bytes is temporary, so that TLS continues with the next call.
func (t *transport) Read(b []byte) (int, error) {
	if !t.polling {
		return t.Conn.Read(b)
	}
	n, err := sysRead(t.fd, b)
	if errors.Is(err, syscall.EAGAIN) {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

// Write implements net.Conn.
func (t *transport) Write(b []byte) (int, error) {
	if t.sender == nil {
		return t.Conn.Write(b)
	}
	if t.failed != nil {
		return 0, t.failed
	}
	if _, t.failed = t.sender.send(b, time.Duration(t.within.Load())); t.failed != nil {
		return 0, t.failed
	}
	return len(b), nil
}

// ServerName returns the name of the server that the client of a connection sent in its TLS handshake. conn is a connection that
// Server.Standard received, or a *tls.Conn.
func ServerName(conn net.Conn) string {
	if l, ok := conn.(*lentConn); ok {
		conn = l.Conn
	}
	switch conn := conn.(type) {
	case *TLSConn:
		return conn.ConnectionState().ServerName
	case *tls.Conn:
		return conn.ConnectionState().ServerName
	}
	return ""
}
