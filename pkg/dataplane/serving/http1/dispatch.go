package http1

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
)

// dispatch sends the request to an instance, and reads the start of its answer: resp[:conn.n].
func (c *conn) dispatch(body []byte) (*Refusal, error) {
	x := &c.x
	for unreached := 0; ; unreached++ {
		refusal, err := c.acquire()
		if err != nil || refusal != nil {
			return refusal, err
		}
		if x.output == nil {
			x.output = outputPool.Get().(*output)
			x.out = append(c.in.req.appendTo(x.out[:0], x.Exchange), body...)
		}
		err = c.sendTo(x.upstream)
		if err == nil {
			return nil, nil
		}
		if !errors.Is(err, errNotSent) {
			return x.failed(err)
		}
		x.Unreachable(x.upstream)
		if ended := c.pause(backoff.Delay(unreached, firstPause, lastPause)); ended != nil {
			return x.failed(errors.Join(ended, err))
		}
	}
}

// failed says what an error before the answer means to the client.
func (x *exchange) failed(err error) (*Refusal, error) {
	switch {
	case errors.Is(err, errClientGone):
		return nil, err
	case errors.Is(err, errTimeout):
		return timedOut, err
	}
	return brokenOff, early(err)
}

// acquire sets upstream.
func (c *conn) acquire() (*Refusal, error) {
	x := &c.x
	x.sent = c.now
	if x.watch != nil {
		x.sent = time.Now()
	}
	x.last = x.sent
	if x.upstream = x.TryAcquire(); x.upstream != nil {
		return nil, nil
	}
	ctx := c.watching().ctx
	if x.timeouts.Start > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, x.start.Add(x.timeouts.Start))
		defer cancel()
	}
	var refusal *Refusal
	x.upstream, refusal = x.Acquire(ctx)
	x.sent = time.Now()
	x.last = x.sent
	switch {
	case x.watch.left():
		return nil, errClientGone
	case x.upstream != nil:
		return nil, nil
	case ctx.Err() != nil:
		return timedOut, errTimeout
	case refusal == nil:
		return unavailable, nil
	}
	return refusal, nil
}

// pause waits before the next attempt to reach an instance.
func (c *conn) pause(d time.Duration) error {
	x := &c.x
	if !backoff.Sleep(c.watching().ctx, clock.RealClock{}, d) {
		return errClientGone
	}
	limit := x.start.Add(maxReach)
	if x.timeouts.Start > 0 {
		limit = x.start.Add(x.timeouts.Start)
	}
	if !time.Now().Before(limit) {
		return errTimeout
	}
	return nil
}

// sendTo sends the request on a connection to an instance. The error is errNotSent if none took it.
func (c *conn) sendTo(upstream *Upstream) error {
	for {
		conn := upstream.take()
		if conn == nil {
			break
		}
		if err := c.roundTrip(conn); !errors.Is(err, errNotSent) {
			return err
		}
		conn.conn.Close()
	}
	ctx := c.base
	if c.x.watch != nil {
		ctx = c.x.watch.ctx
	}
	if limit := c.x.limit(); !limit.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, limit)
		defer cancel()
	}
	conn, err := upstream.dial(ctx)
	if err != nil {
		if c.x.watch != nil && c.x.watch.left() {
			return errClientGone
		}
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	err = c.roundTrip(conn)
	if errors.Is(err, errNotSent) {
		conn.conn.Close()
	}
	return err
}

// roundTrip sends the request on a connection, and reads the start of the answer.
func (c *conn) roundTrip(conn *upstreamConn) error {
	x := &c.x
	x.conn = conn
	conn.out, conn.in = x.out, x.resp
	limit := x.limit()
	if x.watch != nil {
		x.watch.attach(conn.conn)
		conn.setReadDeadline(limit)
	} else if latest := earlier(limit, x.sent.Add(2*watchAfter)); conn.deadline.Sub(x.sent) < watchAfter || conn.deadline.After(latest) {
		// The deadline of an earlier request does as well if it is within these bounds: moving it has its price.
		conn.setReadDeadline(latest)
	}
	err := c.await()
	if errors.Is(err, errNotSent) {
		x.conn = nil
	}
	return err
}

// sendRest writes what of the request did not go in one write.
func (c *conn) sendRest() error {
	conn := c.x.conn
	if err := conn.conn.SetWriteDeadline(c.x.limit()); err != nil {
		return err
	}
	if _, err := conn.conn.Write(conn.out); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errTimeout
		}
		return err
	}
	conn.out = nil
	return conn.conn.SetWriteDeadline(time.Time{})
}
