package delivery

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// plain sends requests over HTTP/1.1 without TLS. It does what http.Transport does at about half the cost: a request is
// written, and its answer read, by the goroutine that waits for it. A recipient that fills the connection with an
// answer before it has read the request would wait for ever, and is left by the timeout.
type plain struct {
	dial dialer
	// hosts has a *host by host:port.
	hosts sync.Map
}

// host holds the idle connections to a recipient.
type host struct {
	address string

	// mu guards what follows.
	mu sync.Mutex
	// idle has the connection that was used last at its end.
	idle []*conn
	// gone tells that the host is no longer among the hosts.
	gone bool
}

// RoundTrip implements http.RoundTripper. The answer holds on to its connection until its body is closed. An
// interimError tells of a connection that ended after an interim answer.
func (t *plain) RoundTrip(r *http.Request) (*http.Response, error) {
	address, err := httpguts.PunycodeHostPort(r.URL.Host)
	if err != nil {
		return nil, err
	}
	if r.URL.Port() == "" {
		address = net.JoinHostPort(strings.Trim(strings.TrimSuffix(address, ":"), "[]"), "80")
	}
	c, err := t.connect(r.Context(), address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(r.Context(), c.interrupt)
	res, err := c.exchange(r)
	if err != nil {
		stop()
		c.Close()
		return nil, err
	}
	res.Body = &body{ReadCloser: res.Body, conn: c, stop: stop, ended: res.ContentLength == 0,
		keep: !res.Close && res.StatusCode != http.StatusSwitchingProtocols}
	return res, nil
}

// connect returns an idle connection or a new one.
func (t *plain) connect(ctx context.Context, address string) (*conn, error) {
	h := t.host(address)
	for {
		c := h.take()
		if c == nil {
			break
		}
		if !c.unusable() {
			return c, nil
		}
		c.Close()
	}
	made, err := t.dial.local(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return newConn(made, t, h), nil
}

// host returns the host at an address.
func (t *plain) host(address string) *host {
	if h, ok := t.hosts.Load(address); ok {
		return h.(*host)
	}
	h, _ := t.hosts.LoadOrStore(address, &host{address: address})
	return h.(*host)
}

// close closes the idle connections.
func (t *plain) close() {
	t.hosts.Range(func(_, value any) bool {
		h := value.(*host)
		for c := h.take(); c != nil; c = h.take() {
			c.Close()
		}
		return true
	})
}

// take returns the connection used last whose time is not over, or nil.
func (h *host) take() *conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.idle) > 0 {
		last := len(h.idle) - 1
		c := h.idle[last]
		h.idle[last] = nil
		h.idle = h.idle[:last]
		if c.expiry.Stop() {
			return c
		}
	}
	return nil
}

// put keeps a connection for later requests, for a time.
func (h *host) put(c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone || len(h.idle) >= maxIdle {
		c.Close()
		return
	}
	if c.expiry == nil {
		c.expiry = time.AfterFunc(keepIdle, c.expire)
	} else {
		c.expiry.Reset(keepIdle)
	}
	h.idle = append(h.idle, c)
}

// remove has a connection idle no longer, and forgets a host without any.
func (t *plain) remove(h *host, c *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.idle {
		if h.idle[i] == c {
			h.idle = append(h.idle[:i], h.idle[i+1:]...)
			break
		}
	}
	if len(h.idle) == 0 && !h.gone {
		h.gone = true
		t.hosts.CompareAndDelete(h.address, h)
	}
}
