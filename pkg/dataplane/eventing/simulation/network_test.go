package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// chance makes the random choices of a history. A choice depends on the seed and on its subject, not on earlier choices:
// goroutines that run at the same time make the same choices in any order.
type chance struct{ seed uint64 }

// below returns a number below n.
func (c chance) below(n int64, about ...any) int64 {
	hash := fnv.New64a()
	fmt.Fprint(hash, about...)
	return rand.New(rand.NewPCG(hash.Sum64(), c.seed)).Int64N(n)
}

// between returns a duration of at least low and less than high, to the nanosecond: no two events coincide.
func (c chance) between(low, high time.Duration, about ...any) time.Duration {
	return low + time.Duration(c.below(int64(high-low), about...))
}

// network connects hosts. Bytes arrive in order, after a delay. While a host is isolated, its traffic is delayed until the
// isolation ends, as by retransmissions.
type network struct {
	chance
	start time.Time

	mu sync.Mutex
	// mu guards the fields below. listeners serve the connections to addresses, each in its own goroutine.
	listeners map[string]func(net.Conn)
	isolated  map[string]time.Time
	// conns are both ends of the open connections, in the order in which they were made.
	conns []*conn
}

func newNetwork(c chance) *network {
	return &network{chance: c, start: time.Now(), listeners: map[string]func(net.Conn){}, isolated: map[string]time.Time{}}
}

func (n *network) listen(address string, serve func(net.Conn)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[address] = serve
}

// close makes the network refuse connections to an address.
func (n *network) close(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.listeners, address)
}

// isolate isolates a host for some time.
func (n *network) isolate(host string, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isolated[host] = time.Now().Add(d)
}

// arrival returns the arrival time of bytes that are sent now. mu is held.
func (n *network) arrival(from, to string) time.Time {
	now := time.Now()
	at := now
	for _, host := range []string{from, to} {
		if until := n.isolated[host]; until.After(at) {
			at = until
		}
	}
	return at.Add(n.between(50*time.Microsecond, 2*time.Millisecond, from, to, now.Sub(n.start)))
}

// reset resets all connections of a host. Bytes that have not arrived are lost.
func (n *network) reset(host string) {
	n.mu.Lock()
	all := n.conns
	n.mu.Unlock()
	for _, c := range all {
		if c.host == host || c.peer.host == host {
			c.fail(syscall.ECONNRESET)
		}
	}
}

// dial connects a host to an address.
func (n *network) dial(ctx context.Context, host, address string) (net.Conn, error) {
	n.mu.Lock()
	at := n.arrival(host, address)
	n.mu.Unlock()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return n.connect(host, address, false)
}

// connect connects a host to an address at once, unless one of them is isolated. The connection has no delays at first if instant
// is true.
func (n *network) connect(host, address string, instant bool) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	serve, now := n.listeners[address], time.Now()
	if serve == nil || n.isolated[host].After(now) || n.isolated[address].After(now) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	near, far := newConn(n, host), newConn(n, address)
	near.peer, far.peer = far, near
	near.instant.Store(instant)
	far.instant.Store(instant)
	n.conns = append(n.conns, near, far)
	go serve(far)
	return near, nil
}

// open returns the number of open connections of a host.
func (n *network) open(host string) (open int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		if c.host == host {
			open++
		}
	}
	return open
}

// remove forgets a closed end.
func (n *network) remove(closed *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := make([]*conn, 0, len(n.conns))
	for _, c := range n.conns {
		if c != closed {
			kept = append(kept, c)
		}
	}
	n.conns = kept
}

// conn is one end of a connection. It implements net.Conn.
type conn struct {
	network *network
	host    string
	peer    *conn
	// instant is true while bytes arrive at this end without a delay.
	instant atomic.Bool

	mu sync.Mutex
	// mu guards the fields below. changed is signaled when a Read may continue.
	changed *sync.Cond
	arrived []chunk
	// err is the result of all reads and writes once the connection was reset or closed.
	err      error
	deadline time.Time
}

// chunk has bytes, or is the end of the stream if data is nil.
type chunk struct {
	at   time.Time
	data []byte
}

func newConn(n *network, host string) *conn {
	c := &conn{network: n, host: host}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// Write implements net.Conn. It does not block.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	err := c.err
	if err == nil && c.expired() {
		err = os.ErrDeadlineExceeded
	}
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	c.peer.receive(append(make([]byte, 0, len(p)), p...))
	return len(p), nil
}

// receive delivers bytes, or the end of the stream, to this end.
func (c *conn) receive(data []byte) {
	at := time.Now()
	if !c.instant.Load() {
		c.network.mu.Lock()
		at = c.network.arrival(c.peer.host, c.host)
		c.network.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.arrived); n > 0 && c.arrived[n-1].at.After(at) {
		at = c.arrived[n-1].at
	}
	c.arrived = append(c.arrived, chunk{at, data})
	if wait := time.Until(at); wait > 0 {
		time.AfterFunc(wait, c.signal)
	} else {
		c.changed.Broadcast()
	}
}

func (c *conn) signal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed.Broadcast()
}

// expired reports whether the deadline has passed. mu is held.
func (c *conn) expired() bool { return !c.deadline.IsZero() && !c.deadline.After(time.Now()) }

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.err != nil:
			return 0, c.err
		case c.expired():
			return 0, os.ErrDeadlineExceeded
		case len(c.arrived) > 0 && !c.arrived[0].at.After(time.Now()):
			first := &c.arrived[0]
			if first.data == nil {
				return 0, io.EOF
			}
			n := copy(p, first.data)
			if first.data = first.data[n:]; len(first.data) == 0 {
				c.arrived = c.arrived[1:]
			}
			return n, nil
		}
		c.changed.Wait()
	}
}

// fail ends all reads and writes at this end, and reports whether it was open.
func (c *conn) fail(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.err = err
	c.changed.Broadcast()
	c.network.remove(c)
	return true
}

// Close implements net.Conn.
func (c *conn) Close() error {
	if c.fail(net.ErrClosed) {
		c.peer.receive(nil)
	}
	return nil
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if !t.IsZero() {
		time.AfterFunc(time.Until(t), c.signal)
	}
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }

// SetWriteDeadline implements net.Conn. Write does not block.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return addr(c.host) }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return addr(c.peer.host) }

// addr is the name of a host.
type addr string

// Network implements net.Addr.
func (addr) Network() string { return "tcp" }

func (a addr) String() string { return string(a) }
