package http1

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// maxIdle bounds the idle connections to an instance.
	maxIdle = 512
	// idleTime is how long a connection to an instance is kept idle: less than the 5 s after which common
	// servers close theirs, as a request that meets the close on its way is lost.
	idleTime = 4 * time.Second
	// dialTimeout bounds the making of a connection.
	dialTimeout = 2 * time.Second
)

// Upstream is an instance that requests are sent to, with its idle connections.
type Upstream struct {
	address string

	// mu guards what follows.
	mu sync.Mutex
	// idle has the connection that was used last at its end.
	idle   []*upstreamConn
	closed bool
	// sweeper runs while there are idle connections.
	sweeper  *time.Timer
	sweeping bool
}

// NewUpstream returns an upstream at host:port.
func NewUpstream(address string) *Upstream { return &Upstream{address: address} }

// Address returns the host:port.
func (u *Upstream) Address() string { return u.address }

// Close closes the idle connections, and those in use as soon as they have done what they are in use for. It is
// for instances that go away.
func (u *Upstream) Close() {
	u.mu.Lock()
	idle := u.idle
	u.idle, u.closed = nil, true
	u.mu.Unlock()
	for _, c := range idle {
		c.conn.Close()
	}
}

// Reopen has connections kept again after Close. It is for instances that come back.
func (u *Upstream) Reopen() {
	u.mu.Lock()
	u.closed = false
	u.mu.Unlock()
}

// take returns the idle connection used last, or nil.
func (u *Upstream) take() *upstreamConn {
	u.mu.Lock()
	defer u.mu.Unlock()
	last := len(u.idle) - 1
	if last < 0 {
		return nil
	}
	c := u.idle[last]
	u.idle[last] = nil
	u.idle = u.idle[:last]
	return c
}

// put keeps a connection for later requests. now may be a little in the past.
func (u *Upstream) put(c *upstreamConn, now time.Time) {
	c.idleSince, c.reused = now, true
	u.mu.Lock()
	keep := !u.closed && len(u.idle) < maxIdle
	if keep {
		u.idle = append(u.idle, c)
		if !u.sweeping {
			u.sweeping = true
			u.schedule(idleTime)
		}
	}
	u.mu.Unlock()
	if !keep {
		c.conn.Close()
	}
}

// schedule lets the sweeper run after d. u.mu is held.
func (u *Upstream) schedule(d time.Duration) {
	if u.sweeper == nil {
		u.sweeper = time.AfterFunc(d, u.sweep)
		return
	}
	u.sweeper.Reset(d)
}

// sweep closes the connections that were idle for too long.
func (u *Upstream) sweep() {
	u.mu.Lock()
	now := time.Now()
	// The list is in the order of its times, but for little: who is out of order waits for the one before it.
	n := 0
	for n < len(u.idle) && now.Sub(u.idle[n].idleSince) >= idleTime {
		n++
	}
	old := append([]*upstreamConn(nil), u.idle[:n]...)
	kept := copy(u.idle, u.idle[n:])
	clear(u.idle[kept:])
	u.idle = u.idle[:kept]
	if u.sweeping = kept > 0; u.sweeping {
		u.schedule(max(idleTime-now.Sub(u.idle[0].idleSince), 10*time.Millisecond))
	}
	u.mu.Unlock()
	for _, c := range old {
		c.conn.Close()
	}
}

// dial makes a new connection.
func (u *Upstream) dial(ctx context.Context) (*upstreamConn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", u.address)
	if err != nil {
		return nil, err
	}
	c, err := newUpstreamConn(conn)
	if err != nil {
		conn.Close()
	}
	return c, err
}
