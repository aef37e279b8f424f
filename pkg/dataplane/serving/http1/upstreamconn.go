package http1

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// errNotSent is why a connection took nothing of a request: it was closed before. errPartial tells that it took a
// part, and there was no room for more.
var (
	errNotSent = errors.New("connection closed before the request was sent")
	errPartial = errors.New("request sent in part")
)

// upstreamConn is a connection to an instance. One goroutine uses it at a time.
type upstreamConn struct {
	conn     net.Conn
	raw      syscall.RawConn
	deadline time.Time
	// reused tells that it has had a request before, idleSince when that was.
	reused    bool
	idleSince time.Time

	// stepFunc is step, made a function value once.
	stepFunc func(fd uintptr) bool
	// out is what is to be written before reading, in where to read to; n and err are what came of it.
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

// step writes out, if there is something to write, and otherwise reads. It returns false to be called again once
// there is something to read.
//
// Writing from within the read has the poller armed before the instance can answer: the answer is waited for
// without a try to read that finds nothing. The one try comes first, and tells whether the connection still is
// good.
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

// setReadDeadline sets the deadline of reads; the zero time is none.
func (c *upstreamConn) setReadDeadline(t time.Time) {
	if !t.Equal(c.deadline) {
		c.deadline = t
		c.conn.SetReadDeadline(t) //nolint:errcheck // fails on closed connections only, as do the reads
	}
}

// sysRead reads what is there. The error is EAGAIN if there is nothing, io.EOF at the end.
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

// sysWrite writes what there is room for. The error is EAGAIN if there is none.
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
