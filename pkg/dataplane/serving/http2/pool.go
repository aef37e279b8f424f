// Package http2 serves clients that speak HTTP/2, and sends requests to backends that speak it without TLS (serving 8-2). Many requests share a
// connection: their frames are collected while it is written to. Frames are parsed and made by golang.org/x/net/http2.
//
// The memory of a request is bounded whatever the other side does: Server has the bounds for clients; a response of a backend that is not read is
// at most firstWindow bytes, and bodies that are not sent to it yet at most maxPending bytes for a connection.
package http2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// crowd is the number of requests of each connection to a backend from which another connection is made, unless there are maxSpread: a
	// connection is served by one thread at a time on both sides.
	crowd, maxSpread = 32, 8
	// stallTime is the time after which a connection whose backend takes no bodies is believed to be stalled, perhaps because the backend does not
	// read one of them. Such connections do not count towards maxSpread.
	stallTime = time.Second
	// idleTime is the time for which a connection without requests is kept.
	idleTime = 4 * time.Second
	// maxTurns bounds the connections that a request waits for and that others fill up.
	maxTurns = 1000
)

// DialError is the error of a request to a backend that accepted no connection.
type DialError struct{ error }

// Unwrap returns the cause.
func (e *DialError) Unwrap() error { return e.error }

// ErrUnprocessed is wrapped by errors of requests that the backend has not processed and never will, as it said itself (RFC 9113 8.7).
var ErrUnprocessed = errors.New("the backend did not process the request")

// Pool has the connections to all backends. It is safe for concurrent use.
type Pool struct {
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu sync.Mutex
	// backends are those with connections, by host:port.
	backends map[string]*backend
}

// NewPool returns a Pool whose connections are made by dial.
func NewPool(dial func(ctx context.Context, network, address string) (net.Conn, error)) *Pool {
	return &Pool{dial: dial, backends: map[string]*backend{}}
}

// backend has the connections to an address. The mu of its Pool guards it.
type backend struct {
	address string
	conns   []*conn
	// dialing is the connection that is being made, or nil.
	dialing *dialing
}

// dialing is a connection that is being made. err is set when done is closed.
type dialing struct {
	done chan struct{}
	err  error
}

// Open begins a request. Without a connection it waits for one, until ctx is canceled. The error is a DialError if the backend accepted no
// connection.
func (p *Pool) Open(ctx context.Context, address string, r *Request) (*Stream, error) {
	for range maxTurns {
		c, pending := p.choose(ctx, address)
		if c != nil {
			s, err := c.open(r)
			if errors.Is(err, errUnavailable) {
				continue
			}
			return s, err
		}
		select {
		case <-pending.done:
			if pending.err != nil {
				return nil, pending.err
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return nil, errUnavailable
}

// choose returns the connection to an address with the fewest requests, or one that is being made. It prefers connections whose backend takes bodies,
// and instead of using one that does not makes another one, unless there are maxSpread without the stalled ones.
func (p *Pool) choose(ctx context.Context, address string) (*conn, *dialing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.backends[address]
	if b == nil {
		b = &backend{address: address}
		p.backends[address] = b
	}
	var best *conn
	least, shortest, spread := 0, time.Duration(0), 0
	for _, c := range b.conns {
		n, blocked, ok := c.load()
		if blocked > stallTime {
			continue
		}
		spread++
		if ok && (best == nil || cmp.Or(cmp.Compare(blocked, shortest), cmp.Compare(n, least)) < 0) {
			best, least, shortest = c, n, blocked
		}
	}
	if spread < maxSpread && shortest > 0 {
		best = nil
	}
	if b.dialing == nil && (best == nil || least >= crowd && spread < maxSpread) {
		b.dialing = &dialing{done: make(chan struct{})}
		go p.connect(context.WithoutCancel(ctx), b, b.dialing)
	}
	if best != nil {
		return best, nil
	}
	return nil, b.dialing
}

// connect makes a connection.
func (p *Pool) connect(ctx context.Context, b *backend, d *dialing) {
	made, err := p.dial(ctx, "tcp", b.address)
	p.mu.Lock()
	defer p.mu.Unlock()
	b.dialing = nil
	if err != nil {
		d.err = &DialError{fmt.Errorf("connect to the instance: %w", err)}
		p.forgetLocked(b)
	} else {
		c := newConn(made, func(c *conn) { p.remove(b, c) })
		b.conns = append(b.conns, c)
		c.start()
	}
	close(d.done)
}

// remove forgets a connection that accepts no more requests.
func (p *Pool) remove(b *backend, c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b.conns = slices.DeleteFunc(b.conns, func(other *conn) bool { return other == c })
	p.forgetLocked(b)
}

func (p *Pool) forgetLocked(b *backend) {
	if len(b.conns) == 0 && b.dialing == nil {
		delete(p.backends, b.address)
	}
}
