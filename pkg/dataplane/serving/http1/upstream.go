package http1

import (
	"context"
	"net"
	"sync"
	"time"
)

const (
	// maxIdle bounds the idle connections to a backend.
	maxIdle = 512
	// idleTime is the maximum time that a connection to a backend is kept idle. It is less than the 5 s after which common
	// servers close idle connections, because a request sent at the time of the close is lost.
	idleTime = 4 * time.Second
	// dialTimeout bounds the time to establish a connection.
	dialTimeout = 2 * time.Second
)

// Upstream is the address of a backend with its idle connections.
type Upstream struct {
	address string

	// mu guards the fields below.
	mu sync.Mutex
	// idle has the most recently used connection at its end.
	idle   []*upstreamConn
	closed bool
	// sweeper closes expired idle connections. sweeping is true while it is scheduled.
	sweeper  *time.Timer
	sweeping bool
}

// NewUpstream returns an upstream at host:port.
func NewUpstream(address string) *Upstream { return &Upstream{address: address} }

// Address returns the host:port.
func (u *Upstream) Address() string { return u.address }

// Close closes idle connections at once, and connections in use after their request. It is called when the backend is
// removed.
func (u *Upstream) Close() {
	u.mu.Lock()
	idle := u.idle
	u.idle, u.closed = nil, true
	u.mu.Unlock()
	for _, c := range idle {
		c.conn.Close()
	}
}

// Reopen reverts Close: connections are kept idle again. It is called when a removed backend is added again.
func (u *Upstream) Reopen() {
	u.mu.Lock()
	u.closed = false
	u.mu.Unlock()
}

// get removes and returns the most recently used idle connection, or nil.
func (u *Upstream) get() *upstreamConn {
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

// put adds an idle connection for later requests, or closes it. now may be a little in the past.
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

// schedule runs the sweeper after d. u.mu must be held.
func (u *Upstream) schedule(d time.Duration) {
	if u.sweeper == nil {
		u.sweeper = time.AfterFunc(d, u.sweep)
		return
	}
	u.sweeper.Reset(d)
}

// sweep closes the connections that were idle for longer than idleTime.
func (u *Upstream) sweep() {
	u.mu.Lock()
	now := time.Now()
	// The list is ordered by time except for small differences. A connection that is out of order is closed after the one
	// before it.
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

// dial establishes a connection.
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
