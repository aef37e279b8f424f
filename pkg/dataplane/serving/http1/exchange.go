package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// watchAfter is how long a response may take before the client is watched: most are there earlier.
const watchAfter = 50 * time.Millisecond

var errEOF = fmt.Errorf("the instance closed its connection: %w", io.ErrUnexpectedEOF)

// Exchange is one request and its response. One goroutine uses it.
type Exchange struct {
	*output
	c        *conn
	observer Observer
	timeouts serving.Timeouts
	// start is the time when it began, sent when it was sent to the backend, last when something came from the backend, or was
	// written to a client that had to be waited for.
	start, sent, last time.Time
	// started is true once the response has started, streaming once the observer knows that it takes a while.
	started, streaming bool
	// closes is true if the connection of the client ends with the response.
	closes bool

	upstream *Upstream
	conn     *upstreamConn
	watch    *watch
	// status is the status code that the client got, received the size of the response's body so far.
	status   int
	received int64
}

// Head returns the head of the request.
func (x *Exchange) Head() *Head { return &x.c.in.req.Head }

// Peer returns the address of the client.
func (x *Exchange) Peer() netip.AddrPort { return x.c.peer }

// Memory returns the bytes that the request holds beyond buffers of the usual sizes. What the server reserved for them while the
// request arrived is released: the caller reserves it now.
func (x *Exchange) Memory() int {
	x.c.unreserve()
	return max(x.c.in.beyond(x.size()), 0)
}

// Begin sets the observer, before Wait and Forward.
func (x *Exchange) Begin(o Observer) {
	x.observer, x.timeouts = o, o.Timeouts()
}

// Wait returns a context that ends when the client closes its connection, or the response should have started.
func (x *Exchange) Wait() (context.Context, context.CancelFunc) {
	ctx := x.watching().ctx
	if x.timeouts.Start > 0 {
		return context.WithDeadlineCause(ctx, x.start.Add(x.timeouts.Start), serving.ErrTimeout)
	}
	return ctx, func() {}
}

// Forward sends the request to a backend, and its response to the client.
func (x *Exchange) Forward(upstream *Upstream) serving.Result {
	x.sent = x.c.now
	if x.watch != nil || x.output != nil {
		x.sent = time.Now()
	}
	x.last, x.upstream = x.sent, upstream
	if x.watch != nil && x.watch.left() {
		return x.Failed(errClientGone)
	}
	if x.output == nil {
		x.output = outputPool.Get().(*output)
		x.out = append(x.c.in.req.appendTo(x.out[:0], x.observer), x.c.in.unread()[x.c.size:x.size()]...)
	}
	err := x.send(upstream)
	if errors.Is(err, errNotSent) {
		if limit := x.limit(); limit.IsZero() || time.Now().Before(limit) {
			return serving.Result{Outcome: serving.Unreached, Err: err}
		}
		err = errors.Join(serving.ErrTimeout, err)
	}
	if err != nil {
		return x.Failed(err)
	}
	return x.result(x.answer())
}

// Failed returns the result of a request that ended by an error before its response, such as the cause of the context of Wait.
func (x *Exchange) Failed(err error) serving.Result { return x.result(failed(err)) }

// result ends an attempt. A rejection is for a client that got nothing yet.
func (x *Exchange) result(rejection *serving.Rejection, err error) serving.Result {
	if x.conn != nil {
		x.conn.conn.Close()
		x.conn = nil
	}
	r := serving.Result{Rejection: rejection, Status: x.status, RequestBytes: x.requestBytes(), ResponseBytes: x.received, Err: err}
	switch {
	case rejection != nil:
		r.Outcome = serving.Rejected
	case err == nil:
	case errors.Is(err, errClientGone):
		r.Outcome = serving.Canceled
		fallthrough
	default:
		x.closes = true
	}
	return r
}

// Reject answers the request with a rejection.
func (x *Exchange) Reject(r *serving.Rejection) error {
	// What the client still gets is not bounded by the exchange, whose time may be over.
	closing := x.c.closing()
	err := x.c.reject(r, x.c.isHead(), closing)
	x.closes = closing || err != nil
	return err
}

func (x *Exchange) requestBytes() int64 { return max(x.c.in.req.length, 0) }

// size returns the size of the request with its body, which has arrived completely.
func (x *Exchange) size() int { return x.c.size + int(x.requestBytes()) }

// failed returns the rejection for an error before the response.
func failed(err error) (*serving.Rejection, error) {
	switch {
	case errors.Is(err, errClientGone):
		return nil, err
	case errors.Is(err, serving.ErrTimeout):
		return serving.TimedOut, err
	}
	return serving.BrokenOff, early(err)
}

// limit is when the exchange has to end, unless something comes before. The zero time is never.
func (x *Exchange) limit() (limit time.Time) {
	t := &x.timeouts
	if x.started {
		if t.Stall > 0 {
			limit = x.last.Add(t.Stall)
		}
		return limit
	}
	if t.Start > 0 {
		limit = x.start.Add(t.Start)
	}
	if t.ResponseStart > 0 {
		limit = earlier(limit, x.sent.Add(t.ResponseStart))
	}
	if t.Idle > 0 {
		limit = earlier(limit, x.last.Add(t.Idle))
	}
	return limit
}

// earlier returns the earlier of two times, of which a zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// await does the next step of the connection to the backend: it reads at least a byte. It starts to watch the client if
// that takes long.
func (x *Exchange) await() error {
	conn := x.conn
	for {
		err := conn.raw.Read(conn.stepFunc)
		if err == nil {
			err = conn.err
		}
		switch {
		case err == nil && conn.n > 0:
			if !x.started && x.timeouts.Idle > 0 {
				x.last = time.Now()
			}
			return nil
		case x.watch != nil && x.watch.left():
			return errClientGone
		case errors.Is(err, os.ErrDeadlineExceeded):
			limit := x.limit()
			if !limit.IsZero() && !time.Now().Before(limit) {
				return serving.ErrTimeout
			}
			x.watching().attach(conn.conn)
			conn.setReadDeadline(limit)
		case errors.Is(err, errPartial):
			if err := x.sendRest(); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// keep keeps the connection to the backend for the next request, or closes it.
func (x *Exchange) keep(reusable bool) {
	conn := x.conn
	x.conn = nil
	now := x.c.now
	if x.watch != nil {
		now = time.Now()
		reusable = x.watch.detach() && reusable
	}
	if !reusable {
		conn.conn.Close()
		return
	}
	x.upstream.put(conn, now)
}

// watching returns the watch of the client, and starts it if it does not run.
func (x *Exchange) watching() *watch {
	if x.watch == nil {
		x.watch = startWatch(x.c.base, x.c.conn, x.c.in.buf[x.c.in.end:])
	}
	return x.watch
}

// unwatch ends the watch, if it runs. Bytes that came meanwhile are input.
func (x *Exchange) unwatch() {
	if x.watch == nil {
		return
	}
	c := x.c
	c.in.end += x.watch.stop()
	x.watch = nil
	c.now = time.Now()
	c.readDeadline = longAgo
	c.setReadDeadline(time.Time{})
}
