package gateway

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// A request with an upgrade is forwarded to the owner of its Revision as a POST. The request body has the bytes that the client
// sends after the upgrade, the response body all bytes from the backend, beginning with the head of its response. So a tunnel
// needs no HTTP/2 extension.

// tunnel sends a request with an upgrade by a transport. It changes out.
func tunnel(forward http.RoundTripper, out *http.Request, upgrade string) (*http.Response, error) {
	original := *out
	from, to := io.Pipe()
	out.Header.Set(methodHeader, out.Method)
	out.Header.Set(upgradeHeader, upgrade)
	out.Header.Del("Connection")
	out.Header.Del("Upgrade")
	out.Method, out.Body, out.ContentLength = http.MethodPost, from, -1
	res, err := forward.RoundTrip(out)
	if err != nil {
		to.Close()
		return nil, err
	}
	if res.Header.Get(tunnelHeader) == "" {
		to.Close()
		return res, nil
	}
	reader := bufio.NewReader(res.Body)
	switched, err := http.ReadResponse(reader, &original)
	if err == nil && switched.StatusCode != http.StatusSwitchingProtocols {
		err = errors.New("response does not switch protocols")
	}
	if err != nil {
		to.Close()
		res.Body.Close()
		return nil, err
	}
	switched.Body = &tunnelEnd{Reader: reader, in: res.Body, WriteCloser: to}
	return switched, nil
}

// tunnelEnd is the connection to a backend through another replica.
type tunnelEnd struct {
	io.Reader
	in io.Closer
	io.WriteCloser
}

// CloseWrite closes the direction to the backend.
func (t *tunnelEnd) CloseWrite() error { return t.WriteCloser.Close() }

// Close closes both directions.
func (t *tunnelEnd) Close() error { return errors.Join(t.WriteCloser.Close(), t.in.Close()) }

// tunnelWriter implements http.Hijacker for an HTTP/2 stream of another replica.
type tunnelWriter struct {
	http.ResponseWriter
	in io.ReadCloser
}

// Unwrap returns the wrapped writer for http.ResponseController.
func (w *tunnelWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Hijack implements http.Hijacker.
func (w *tunnelWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	header := w.Header()
	clear(header)
	header.Set(tunnelHeader, "1")
	header.Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w.ResponseWriter)
	if err := control.Flush(); err != nil {
		return nil, nil, err
	}
	// The head within the tunnel has its own header fields.
	clear(header)
	conn := &tunnelConn{writer: w.ResponseWriter, control: control, in: w.in}
	return conn, bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)), nil
}

// tunnelConn is a stream of another replica as a net.Conn.
type tunnelConn struct {
	control *http.ResponseController
	in      io.ReadCloser

	// mu is held during a write: the writer must not be used when the handler has ended, which closes the connection before.
	mu     sync.Mutex
	writer io.Writer
	closed bool
}

// Read implements net.Conn.
func (c *tunnelConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// Write implements net.Conn. It fails after Close.
func (c *tunnelConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, net.ErrClosed
	}
	n, err := c.writer.Write(b)
	if err != nil {
		return n, err
	}
	return n, c.control.Flush()
}

// Close implements net.Conn. It ends a write in progress.
func (c *tunnelConn) Close() error {
	err := c.in.Close()
	if !c.mu.TryLock() {
		err = errors.Join(err, c.control.SetWriteDeadline(time.Unix(1, 0)))
		c.mu.Lock()
	}
	c.closed = true
	c.mu.Unlock()
	return err
}

// LocalAddr implements net.Conn.
func (c *tunnelConn) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr implements net.Conn.
func (c *tunnelConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline implements net.Conn.
func (c *tunnelConn) SetDeadline(t time.Time) error {
	return errors.Join(c.control.SetReadDeadline(t), c.control.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *tunnelConn) SetReadDeadline(t time.Time) error { return c.control.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *tunnelConn) SetWriteDeadline(t time.Time) error { return c.control.SetWriteDeadline(t) }
