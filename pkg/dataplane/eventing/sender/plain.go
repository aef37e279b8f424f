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

	// mu guards idle: connections by host:port, the most recently used one last. No list is empty.
	mu   sync.Mutex
	idle map[string][]*conn
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
	for idle := t.idle[address]; len(idle) > 0; idle = t.idle[address] {
		c := idle[len(idle)-1]
		t.drop(c, len(idle)-1)
		if c.expiry.Stop() {
			return c
		}
	}
	return nil
}

// put keeps a connection for later requests until it expires.
func (t *plain) put(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.idle[c.address]) >= maxIdle {
		c.Close()
		return
	}
	t.idle[c.address] = append(t.idle[c.address], c)
	if c.expiry == nil {
		c.expiry = time.AfterFunc(keepIdle, c.expire)
	} else {
		c.expiry.Reset(keepIdle)
	}
}

// remove removes a connection from the idle ones.
func (t *plain) remove(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.idle[c.address], c); i >= 0 {
		t.drop(c, i)
	}
}

// drop removes connection number i of an address from the idle ones. mu is held.
func (t *plain) drop(c *conn, i int) {
	if idle := slices.Delete(t.idle[c.address], i, i+1); len(idle) > 0 {
		t.idle[c.address] = idle
	} else {
		delete(t.idle, c.address)
	}
}
