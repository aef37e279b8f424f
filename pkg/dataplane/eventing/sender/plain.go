package sender

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// plain sends requests over HTTP/1.1 without TLS. It is not http.Transport because that takes 1.5 times the processor time
// and 58 allocations instead of 38 under the same rules (BenchmarkTransports): here the goroutine that waits for the answer
// also writes the request and reads the answer. A recipient that fills the connection with an answer before it has read the
// request would block both sides until the timeout.
type plain struct {
	dial dialer

	// mu guards the fields below: the idle connections by host:port, the most recently used one last, and the timer that closes expired
	// ones, nil without idle connections. No list is empty.
	mu    sync.Mutex
	idle  map[string][]*conn
	sweep *time.Timer
}

var errHost = errors.New("the host is not valid")

// RoundTrip implements http.RoundTripper. The answer occupies its connection until its body is closed. An
// interimError is returned if the connection ended after an interim answer. A request is repeated on a new connection if the
// recipient closed the first one while it was idle, and so cannot have read the request.
func (t *plain) RoundTrip(r *http.Request) (*http.Response, error) {
	address, err := httpguts.PunycodeHostPort(r.URL.Host)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errHost, err)
	}
	if r.URL.Port() == "" {
		address = net.JoinHostPort(strings.Trim(strings.TrimSuffix(address, ":"), "[]"), "80")
	}
	if c := t.usable(address); c != nil {
		res, err := t.send(c, r)
		if err == nil {
			return res, nil
		}
		unread := !c.answered && r.Context().Err() == nil && c.idle.Reset()
		c.Close()
		if !unread {
			return nil, err
		}
		if r.GetBody != nil {
			repeated := *r
			if repeated.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
			r = &repeated
		}
	}
	made, err := t.dial.local(r.Context(), "tcp", address)
	if err != nil {
		return nil, err
	}
	c := newConn(made, t, address)
	res, err := t.send(c, r)
	if err != nil {
		c.Close()
	}
	return res, err
}

// send sends a request on a connection, which the response closes or returns to the idle ones. After an error, the caller
// closes it.
func (t *plain) send(c *conn, r *http.Request) (*http.Response, error) {
	stop := context.AfterFunc(r.Context(), c.interrupt)
	res, err := c.exchange(r)
	if err != nil {
		stop()
		return nil, err
	}
	res.Body = &body{ReadCloser: res.Body, conn: c, stop: stop, ended: res.ContentLength == 0,
		keep: !res.Close && res.StatusCode != http.StatusSwitchingProtocols}
	return res, nil
}

// usable returns an idle connection that the recipient is not known to have closed, or nil.
func (t *plain) usable(address string) *conn {
	for c := t.pop(address); c != nil; c = t.pop(address) {
		if !c.idle.Unusable() {
			return c
		}
		c.Close()
	}
	return nil
}

// close closes the idle connections.
func (t *plain) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, idle := range t.idle {
		for _, c := range idle {
			c.Close()
		}
	}
	clear(t.idle)
}

// pop removes and returns the most recently used connection that has not expired, or nil.
func (t *plain) pop(address string) *conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	idle := t.idle[address]
	if len(idle) == 0 {
		return nil
	}
	last := len(idle) - 1
	c := idle[last]
	if time.Since(c.since) >= keepIdle {
		// The others have expired too.
		return nil
	}
	t.keep(address, slices.Delete(idle, last, last+1))
	return c
}

// put keeps a connection for later requests until it expires.
func (t *plain) put(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	idle := t.idle[c.address]
	if len(idle) >= maxIdle {
		c.Close()
		return
	}
	c.since = time.Now()
	t.idle[c.address] = append(idle, c)
	if t.sweep == nil {
		t.sweep = time.AfterFunc(keepIdle, t.expire)
	}
}

// expire closes the connections that have expired. One timer for all costs less than one that is set for each request.
func (t *plain) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	next := now.Add(keepIdle)
	for address, idle := range t.idle {
		expired := slices.IndexFunc(idle, func(c *conn) bool { return now.Sub(c.since) < keepIdle })
		if expired < 0 {
			expired = len(idle)
		} else if ends := idle[expired].since.Add(keepIdle); ends.Before(next) {
			next = ends
		}
		for _, c := range idle[:expired] {
			c.Close()
		}
		t.keep(address, slices.Delete(idle, 0, expired))
	}
	if len(t.idle) == 0 {
		t.sweep = nil
		return
	}
	t.sweep.Reset(max(next.Sub(now), sweepInterval))
}

// keep sets the idle connections of an address. mu is held.
func (t *plain) keep(address string, idle []*conn) {
	if len(idle) > 0 {
		t.idle[address] = idle
	} else {
		delete(t.idle, address)
	}
}
