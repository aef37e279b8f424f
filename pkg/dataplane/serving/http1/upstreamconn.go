package http1

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// errNotSent means that a connection was closed before it accepted a byte of the request, errPartial that it accepted only a
// part because its send buffer was full.
var (
	errNotSent = errors.New("connection closed before the request was sent")
	errPartial = errors.New("request partially sent")
)

// upstreamConn is a connection to a backend. One goroutine uses it at a time.
type upstreamConn struct {
	conn     net.Conn
	raw      syscall.RawConn
	deadline time.Time
	// reused is true after the first request, idleSince the end of the last one.
	reused    bool
	idleSince time.Time

	// stepFunc is the method value of step, created once to save allocations.
	stepFunc func(fd uintptr) bool
	// out is written before reading into in; n and err are the results.
	out, in []byte
	n       int
	err     error
}

func newUpstreamConn(conn net.Conn) (*upstreamConn, error) {
	rawConn, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("connection to %v has no descriptor", conn.RemoteAddr())
	}
	raw, err := rawConn.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &upstreamConn{conn: conn, raw: raw}
	c.stepFunc = c.step
	return c, nil
}

// step writes out if it is not empty, and otherwise reads. It returns false if it must be called again when the connection
// is readable.
//
// Writing within the read callback saves a read: the poller waits for the response without a first read that returns
// EAGAIN. The read before the write detects whether the backend has closed a reused connection.
func (c *upstreamConn) step(fd uintptr) bool {
	if c.out == nil {
		c.n, c.err = sysRead(fd, c.in)
		return !errors.Is(c.err, syscall.EAGAIN)
	}
	if c.reused {
		if _, err := sysRead(fd, c.in[:1]); !errors.Is(err, syscall.EAGAIN) {
			c.n, c.err = 0, errNotSent
			return true
		}
	}
	n, err := sysWrite(fd, c.out)
	switch {
	case err != nil && !errors.Is(err, syscall.EAGAIN):
		c.n, c.err = 0, errNotSent
		return true
	case n < len(c.out):
		c.out, c.n, c.err = c.out[n:], 0, errPartial
		return true
	}
	c.out = nil
	return false
}

// setReadDeadline sets the deadline of reads. The zero time means none.
func (c *upstreamConn) setReadDeadline(t time.Time) {
	if !t.Equal(c.deadline) {
		c.deadline = t
		c.conn.SetReadDeadline(t) //nolint:errcheck // fails on closed connections only, as do the reads
	}
}

// sysRead reads available bytes without blocking. The error is EAGAIN if none are available, io.EOF at the end.
func sysRead(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), b)
		switch {
		case err == nil && n == 0:
			return 0, io.EOF
		case err == nil:
			return n, nil
		case !errors.Is(err, syscall.EINTR):
			return 0, err
		}
	}
}

// sysWrite writes as many bytes as fit into the send buffer. The error is EAGAIN if it is full.
func sysWrite(fd uintptr, b []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), b)
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return 0, err
		}
	}
}
