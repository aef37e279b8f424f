package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow/idleconn"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http2"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/linger"
)

const (
	dialTimeout = 2 * time.Second
	// keepIdle is the time for which idle connections to backends are kept: less than the 5 s after which common servers close theirs,
	// because a request sent at the time of the close is lost.
	keepIdle = 4 * time.Second
)

// Transports are the connections to backends, by the protocol of their Revision.
type Transports struct {
	http1   *http.Transport
	h2c     *http2.Pool
	buffers buffers
}

// buffers implements httputil.BufferPool.
type buffers struct{ pool sync.Pool }

// bufferSize is the size that httputil.ReverseProxy uses itself.
const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return buffer[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(buffer []byte) { b.pool.Put((*[bufferSize]byte)(buffer)) }

// New returns Transports without connections.
func New() *Transports {
	plain := &http.Transport{
		DialContext:           dial,
		DisableCompression:    true,
		MaxIdleConnsPerHost:   512,
		IdleConnTimeout:       keepIdle,
		ExpectContinueTimeout: time.Second,
		Protocols:             new(http.Protocols),
	}
	plain.Protocols.SetHTTP1(true)
	return &Transports{http1: plain, h2c: http2.NewPool((&net.Dialer{Timeout: dialTimeout}).DialContext)}
}

// countedConn counts the bytes written to a backend. While a request holds it, Close ends the stream to the backend, and interrupts reads
// and writes: the backend's close of its side shows that it has ended the request.
type countedConn struct {
	net.Conn
	written atomic.Int64
	// doubted is true if the next write is the start of a request on a connection that was used before.
	doubted atomic.Bool
	idle    *idleconn.Checker

	// mu guards the fields below.
	mu sync.Mutex
	// holder is the limited request that uses the connection, if any.
	holder *Request
	// closed is true after Close.
	closed bool
	// place is the place of an abandoned request, until the transport closes the connection.
	place *linger.Place
}

// hold makes a request hold the connection.
func (c *countedConn) hold(f *Request) {
	c.mu.Lock()
	place := c.place
	c.holder, c.place = f, nil
	c.mu.Unlock()
	// The transport has read the response of the request before.
	place.Release()
}

// release reverts hold. place is nil if the backend has ended the request.
func (c *countedConn) release(f *Request, place *linger.Place) {
	c.mu.Lock()
	holds, closed := c.holder == f, c.closed
	if holds {
		c.holder = nil
		if !closed {
			c.place = place
		}
	}
	c.mu.Unlock()
	switch {
	case !holds:
		// The transport has read the response, and uses the connection for another request.
		place.Release()
	case closed:
		place.Await(c.Conn)
	}
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.mu.Lock()
	wasClosed, held, place := c.closed, c.holder != nil, c.place
	c.closed, c.place = true, nil
	c.mu.Unlock()
	switch {
	case wasClosed:
		return nil
	case held || place != nil:
		c.CloseWrite()              //nolint:errcheck // fails on closed connections only
		c.Conn.SetDeadline(longAgo) //nolint:errcheck // fails on closed connections only
		if place != nil {
			place.Await(c.Conn)
		}
		return nil
	}
	return c.Conn.Close()
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

// CloseWrite ends the stream to the backend.
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
		return nil, Unreached(err)
	}
	return &countedConn{Conn: conn, idle: idleconn.NewChecker(conn)}, nil
}

// Backend returns a Send to a backend that speaks HTTP/1.1. If limited is true, a request that ends before its backend has ended it is
// abandoned.
func (f *Request) Backend(address string, limited bool) Send {
	f.limited = limited
	return func(out *http.Request) (*http.Response, error) {
		for {
			res, unsent, err := f.sendOnce(out, address)
			if err == nil || !unsent || out.Context().Err() != nil || f.Sent() {
				return res, err
			}
		}
	}
}

// sendOnce sends a request to a backend. unsent is true, after an error, if nothing was written to a connection that had been
// used before.
func (f *Request) sendOnce(r *http.Request, address string) (res *http.Response, unsent bool, err error) {
	var conn *countedConn
	var written int64
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		c, ok := info.Conn.(*countedConn)
		if !ok {
			return
		}
		if f.limited {
			f.conn = c
			c.hold(f)
		}
		if info.Reused {
			conn, written = c, c.written.Load()
			c.doubted.Store(true)
		}
	}}
	out := r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	url := *r.URL
	url.Host = address
	out.URL = &url
	once(out)
	defer f.limitStart()()
	f.limitSilence()
	f.finished.Store(false)
	res, err = f.transports.http1.RoundTrip(out)
	unsent = conn != nil && conn.written.Load() == written
	if err != nil && unsent {
		f.finished.Store(true)
		f.release()
	}
	return res, unsent, err
}

// release ends the use of a connection by a limited request. If the backend may still work on the request, it is abandoned.
func (f *Request) release() {
	c := f.conn
	if c == nil {
		return
	}
	f.conn = nil
	var place *linger.Place
	if !f.finished.Load() {
		place = f.observer.Abandon()
	}
	c.release(f, place)
}

// once prevents net/http from retrying a request that it considers idempotent.
func once(r *http.Request) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := r.Header[name]; ok {
			// net/http looks up the canonical name; backends ignore the case of names.
			delete(r.Header, name)
			r.Header[strings.ToLower(name)] = values
		}
	}
	if r.Body != nil {
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		r.Body = emptyBody{}
		// Neither a length nor chunks.
		r.TransferEncoding = []string{"identity"}
	}
}
