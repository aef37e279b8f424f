// Package idleconn detects that the peer closed an idle connection, before and after a request is written to it.
package idleconn

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Checker checks a connection. It is not safe for concurrent use, and finds nothing on a connection without a descriptor.
type Checker struct {
	raw syscall.RawConn
	// poll is made a function value once, so that checks allocate nothing; fds and readable are its argument and result.
	poll     func(fd uintptr)
	fds      [1]unix.PollFd
	readable bool
}

// NewChecker returns a checker of a connection.
func NewChecker(conn net.Conn) *Checker {
	c := &Checker{}
	c.poll = c.pollRead
	if described, ok := conn.(syscall.Conn); ok {
		if raw, err := described.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
	return c
}

// Unusable reports whether the peer has closed the idle connection, or sent unsolicited data: the peer might never read
// a request that is written now.
func (c *Checker) Unusable() bool {
	if c.raw == nil {
		return false
	}
	return c.raw.Control(c.poll) != nil || c.readable
}

func (c *Checker) pollRead(fd uintptr) {
	c.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	n, err := unix.Poll(c.fds[:], 0)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll(c.fds[:], 0)
	}
	c.readable = n > 0 || err != nil
}

// resetTimeout is the time in which a reset must arrive after the end of the connection: a few round trips.
const resetTimeout = 20 * time.Millisecond

// Reset reports whether the peer's system resets the connection, because written data arrived after the peer had closed it.
// A peer that reads the data and then closes the connection causes no reset.
func (c *Checker) Reset() bool {
	if c.raw == nil {
		return false
	}
	found := false
	err := c.raw.Control(func(fd uintptr) {
		// Without requested events, poll returns for errors only.
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, int(resetTimeout.Milliseconds()))
		found = err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return err == nil && found
}
