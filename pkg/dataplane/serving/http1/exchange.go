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

// watchAfter is the time after which a client whose response has not started is watched. Most responses start earlier.
const watchAfter = 50 * time.Millisecond

var errEOF = fmt.Errorf("backend closed the connection: %w", io.ErrUnexpectedEOF)

// Exchange is one request and its response. One goroutine uses it.
type Exchange struct {
	*output
	c        *conn
	observer Observer
	timeouts serving.Timeouts
	// start is the time when the exchange began, sent when the request was sent to the backend, last when bytes were
	// last received from the backend or sent to the client.
	start, sent, last time.Time
	// started is true once the response has started, streaming once it was reported to the observer as streaming.
	started, streaming bool
	// closes is true if the client's connection is closed after the response.
	closes bool

	upstream *Upstream
	conn     *upstreamConn
	watch    *watch
	// status is the status code of the response that was sent, received the size of its body so far.
	status   int
	received int64
}

// Head returns the head of the request.
func (x *Exchange) Head() *Head { return &x.c.in.req.Head }

// Peer returns the address of the client.
func (x *Exchange) Peer() netip.AddrPort { return x.c.peer }

// ServerName returns the name of the server that the client sent in the TLS handshake; empty without TLS.
func (x *Exchange) ServerName() string { return x.c.serverName }

// Memory returns the bytes that the request holds beyond buffers of the initial sizes, for the caller to reserve. It releases the
// server's reservation for the arriving request.
func (x *Exchange) Memory() int {
	x.c.unreserve()
	return max(x.c.in.extra(x.size()), 0)
}

// Begin sets the observer, before Wait and Forward.
func (x *Exchange) Begin(o Observer) {
	x.observer, x.timeouts = o, o.Timeouts()
}

// Wait returns a context that is canceled when the client closes its connection or the start timeout has passed.
func (x *Exchange) Wait() (context.Context, context.CancelFunc) {
	ctx := x.watching().ctx
	if x.timeouts.Start > 0 {
		return context.WithDeadlineCause(ctx, x.start.Add(x.timeouts.Start), serving.ErrTimeout)
	}
	return ctx, func() {}
}

// Forward sends the request to a backend and the response to the client.
func (x *Exchange) Forward(upstream *Upstream) serving.Result {
	x.sent = x.c.now
	if x.watch != nil || x.output != nil {
		x.sent = time.Now()
	}
	x.last, x.upstream = x.sent, upstream
	if x.watch != nil && x.watch.clientGone() {
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
	return x.result(x.receive())
}

// Failed returns the result of a request that failed before its response, for example with the cause of Wait's context.
func (x *Exchange) Failed(err error) serving.Result { return x.result(failed(err)) }

// Interrupt closes the connection of the client, which ends the exchange as if the client had closed it. It does not block. Another
// goroutine may call it before the end of the exchange.
func (x *Exchange) Interrupt() {
	// A TLS connection writes an alert first.
	go x.c.conn.Close()
}

// result ends an attempt. A rejection is only possible if nothing was sent to the client.
func (x *Exchange) result(rejection *serving.Rejection, err error) serving.Result {
	if x.conn != nil {
		if x.watch != nil {
			x.watch.detach()
		}
		x.observer.Abandon().Await(x.conn.conn)
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
	// The rejection has its own time limit, because the timeouts of the exchange may have expired.
	closing := x.c.closing()
	err := x.c.reject(r, x.c.isHead(), closing)
	x.closes = closing || err != nil
	return err
}

func (x *Exchange) requestBytes() int64 { return max(x.c.in.req.length, 0) }

// size returns the size of the head and the body.
func (x *Exchange) size() int { return x.c.size + int(x.requestBytes()) }

// failed returns the rejection for an error before the response.
func failed(err error) (*serving.Rejection, error) {
	switch {
	case errors.Is(err, errClientGone):
		return nil, err
	case errors.Is(err, serving.ErrTimeout):
		return serving.TimedOut, err
	}
	return serving.BrokenOff, unexpectedEnd(err)
}

// limit returns the time at which the exchange times out if no more bytes arrive. The zero time means never.
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

// earlier returns the earlier of two times. A zero a means no time.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// await sends the rest of the request and reads at least one byte from the backend. It starts the watch of the client if
// the backend does not respond soon.
func (x *Exchange) await() error {
	conn := x.conn
	for {
		err := conn.raw.Read(conn.stepFunc)
		if err == nil {
			err = conn.err
		}
		switch {
		case x.watch != nil && x.watch.clientGone():
			// Bytes that arrive now may be the backend's answer to the end of the stream, which no client gets.
			return errClientGone
		case err == nil && conn.n > 0:
			if !x.started && x.timeouts.Idle > 0 {
				x.last = time.Now()
			}
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			limit := x.limit()
			if !limit.IsZero() && !time.Now().Before(limit) {
				return serving.ErrTimeout
			}
			conn.setReadDeadline(limit)
			x.watching().attach(conn.conn)
		case errors.Is(err, errPartial):
			if err := x.sendRest(); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// keep returns the connection to the backend to its upstream if it is reusable, and closes it otherwise.
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

// watching returns the watch of the client, and starts it if it is not running.
func (x *Exchange) watching() *watch {
	if x.watch == nil {
		x.watch = startWatch(x.c.base, x.c.conn, x.c.in.buf[x.c.in.end:])
	}
	return x.watch
}

// unwatch stops the watch, if it is running. The bytes that it read become input.
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
