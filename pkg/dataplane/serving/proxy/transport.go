package gateway

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow/idleconn"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

const (
	dialTimeout = 2 * time.Second
	// keepIdle is how long connections to instances are kept: less than the 5 s after which common servers close
	// theirs, as a request that meets the close on its way is lost.
	keepIdle = 4 * time.Second
)

// transports send requests to instances, by the protocol of their revision, or to the replica that has these.
type transports struct {
	http1, h2c *http.Transport
	relays     relays
}

func newTransports(relays relays) *transports {
	plain := &http.Transport{
		DialContext:           dial,
		DisableCompression:    true,
		MaxIdleConnsPerHost:   512,
		IdleConnTimeout:       keepIdle,
		ExpectContinueTimeout: time.Second,
		Protocols:             new(http.Protocols),
	}
	plain.Protocols.SetHTTP1(true)
	h2c := plain.Clone()
	h2c.Protocols = new(http.Protocols)
	h2c.Protocols.SetUnencryptedHTTP2(true)
	return &transports{http1: plain, h2c: h2c, relays: relays}
}

// dialError is why an instance took no connection: nothing was sent to it.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

// countedConn counts what was written to an instance.
type countedConn struct {
	net.Conn
	written atomic.Int64
	// doubted tells that the next write is the start of a request on a connection that was used before.
	doubted atomic.Bool
	idle    *idleconn.Checker
}

// Write implements net.Conn.
func (c *countedConn) Write(p []byte) (int, error) {
	if c.doubted.Swap(false) && c.idle.Unusable() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// CloseWrite ends what goes to the instance.
func (c *countedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, &dialError{err}
	}
	return &countedConn{Conn: conn, idle: idleconn.NewChecker(conn)}, nil
}

// RoundTrip sends the request of a forward to an instance, as soon as there is one. Only what was not sent yet is
// sent again.
func (t *transports) RoundTrip(r *http.Request) (*http.Response, error) {
	f := forwardOf(r)
	x := f.exchange
	ctx := r.Context()
	body := newMeteredRequest(f, x.request, r)
	f.body = body
	var reach reach
	for {
		if owner := x.pool.owner.Load(); owner != nil {
			x.uncount()
			if waited, err := reach.back(ctx, x, owner); waited {
				if err != nil {
					return nil, err
				}
				continue
			}
			x.enter(ctx)
			res, ok, err := t.relays.send(r, x, body, owner)
			if err == nil && ok {
				return res, nil
			}
			if ok || ctx.Err() != nil {
				return nil, err
			}
			x.leave()
			if err := reach.wait(ctx, err); err != nil {
				return nil, err
			}
			continue
		}
		x.count()
		upstream := x.TryAcquire() //nolint:contextcheck // what it may ask other replicas is for all that wait
		if upstream == nil {
			next, refusal := x.Acquire(ctx)
			if refusal == http1.HandOver {
				continue
			}
			if refusal != nil {
				return nil, refusedError{refusal}
			}
			if next == nil {
				return nil, context.Cause(ctx)
			}
			upstream = next
		}
		for {
			res, unsent, err := t.send(r, f, body, upstream.Address())
			if err == nil {
				return res, nil
			}
			var unreached *dialError
			if ctx.Err() != nil || body != nil && body.begun.Load() {
				return nil, err
			}
			if errors.As(err, &unreached) {
				x.Unreachable(upstream)
				break
			}
			if !unsent {
				return nil, err
			}
		}
	}
}

// send sends a request to an instance. unsent tells, after an error, that nothing was written to a connection
// that had been used before.
func (t *transports) send(r *http.Request, f *forward, body *meteredRequest, address string) (res *http.Response, unsent bool, err error) {
	var conn *countedConn
	var written int64
	spec := f.exchange.pool.spec.Load()
	multiplexed := spec != nil && spec.Protocol == routing.H2C && r.Header.Get("Upgrade") == ""
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if c, ok := info.Conn.(*countedConn); ok && info.Reused && !multiplexed {
			conn, written = c, c.written.Load()
			c.doubted.Store(true)
		}
	}})
	out := r.WithContext(ctx)
	url := *r.URL
	url.Host = address
	out.URL = &url
	if body != nil {
		out.Body = body
	}
	via := t.http1
	if multiplexed {
		via = t.h2c
	} else {
		once(out)
	}
	timeouts := f.exchange.Timeouts()
	if timeouts.ResponseStart > 0 {
		timer := time.AfterFunc(timeouts.ResponseStart, f.expire)
		defer timer.Stop()
	}
	f.limitSilence(timeouts.Idle)
	res, err = via.RoundTrip(out)
	return res, conn != nil && conn.written.Load() == written, err
}

// once keeps net/http from sending a request again that it thinks may be.
func once(r *http.Request) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := r.Header[name]; ok {
			// It looks for the canonical name; the case of names means nothing to the instance.
			delete(r.Header, name)
			r.Header[strings.ToLower(name)] = values
		}
	}
	if r.Body != nil {
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		r.Body = noBody{}
		// Neither a length nor chunks.
		r.TransferEncoding = []string{"identity"}
	}
}
