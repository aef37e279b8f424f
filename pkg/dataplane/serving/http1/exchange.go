package http1

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	// watchAfter is how long an answer is waited for before the client is watched: most are there earlier.
	watchAfter = 50 * time.Millisecond
	// firstPause and lastPause are the waits between attempts to reach an instance; each is twice the one before.
	firstPause, lastPause = 5 * time.Millisecond, 320 * time.Millisecond
	// maxReach bounds these attempts where the exchange has no bound.
	maxReach = time.Minute
)

var (
	errTimeout = errors.New("request timeout")
	// errHandedOver is why an exchange ends that the standard path begins anew.
	errHandedOver = errors.New("handed over")
	errEOF        = fmt.Errorf("the instance closed its connection: %w", io.ErrUnexpectedEOF)

	timedOut    = &Refusal{Status: http.StatusGatewayTimeout, Body: "request timeout"}
	brokenOff   = &Refusal{Status: http.StatusBadGateway, Body: "the instance closed the connection without an answer"}
	badResponse = &Refusal{Status: http.StatusBadGateway, Body: "the instance's answer is not valid HTTP"}
	unavailable = &Refusal{Status: http.StatusServiceUnavailable, Body: "no instance is available"}
)

// exchange is the state of the current request.
type exchange struct {
	Exchange
	*output
	// start is when it began, sent when it went to the instance, last when something came from the instance, or went
	// to a client that had to be waited for.
	start, sent, last time.Time
	timeouts          Timeouts
	// started is true once the response has started, streaming once the Exchange was told that it takes a while.
	started, streaming bool
	// closes is whether the client was told that its connection ends.
	closes bool

	upstream *Upstream
	conn     *upstreamConn
	watch    *watch
	result   Result
}

// limit is when the exchange has to end, unless something comes before. The zero time is never.
func (x *exchange) limit() (limit time.Time) {
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

// serveRequest forwards the request that has arrived, and answers it.
func (c *conn) serveRequest() next {
	req := &c.in.req
	c.now = time.Now()
	ex, refusal := c.server.Router.Begin(&req.Head, c.peer)
	if ex == nil && refusal == nil {
		return handOver
	}
	size := c.size + int(max(req.length, 0))
	if ex == nil {
		closing := c.closing()
		err := c.refuse(refusal, c.isHead(), closing)
		return c.finish(size, closing || err != nil)
	}
	x := &c.x
	*x = exchange{Exchange: ex, start: c.now, result: Result{RequestBytes: max(req.length, 0)}}
	x.timeouts = ex.Timeouts()
	closing, err := c.proxy(c.in.unread()[c.size:size])
	c.unwatch()
	handed := errors.Is(err, errHandedOver)
	if x.output != nil {
		x.output.release()
	}
	if handed {
		*x = exchange{}
		ex.Done(Result{})
		return handOver
	}
	x.result.Err = err
	result := x.result
	*x = exchange{}
	ex.Done(result)
	return c.finish(size, closing)
}

// finish takes a request of size bytes as dealt with.
func (c *conn) finish(size int, closing bool) next {
	c.in.skip(size)
	if closing {
		return endConn
	}
	return goOn
}

// proxy gets the request answered. It tells whether the client's connection ends, and why the exchange ended early.
func (c *conn) proxy(body []byte) (closing bool, err error) {
	x := &c.x
	var refusal *Refusal
	c.unreserve()
	if more := c.in.beyond(c.size + len(body)); more > 0 && !x.Hold(more) {
		refusal = OverBudget
	} else {
		refusal, err = c.dispatch(body)
	}
	if err == nil && refusal == nil {
		refusal, err = c.answer()
	}
	if x.conn != nil {
		x.conn.conn.Close()
		x.conn = nil
	}
	switch refusal {
	case nil:
		return err != nil || x.closes, err
	case HandOver:
		return false, errHandedOver
	}
	// What the client still gets is not bounded by the exchange, whose time may be over.
	closing = c.closing()
	if refused := c.refuse(refusal, c.isHead(), closing); refused != nil {
		return true, errors.Join(err, refused)
	}
	x.result.Status = refusal.Status
	return closing, err
}

// await has the connection do its next step: it reads at least a byte. It begins to watch the client if that
// takes long.
func (c *conn) await() error {
	x := &c.x
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
				return errTimeout
			}
			c.watching().attach(conn.conn)
			conn.setReadDeadline(limit)
		case errors.Is(err, errPartial):
			if err := c.sendRest(); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// keep gives the connection to the instance back for the next request, or ends it.
func (c *conn) keep(reusable bool) {
	x := &c.x
	conn := x.conn
	x.conn = nil
	now := c.now
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

// watching returns the watch of the client, which it starts if there is none.
func (c *conn) watching() *watch {
	if c.x.watch == nil {
		c.x.watch = startWatch(c.base, c.conn, c.in.buf[c.in.end:])
	}
	return c.x.watch
}

// unwatch ends the watch, if there is one. What came meanwhile is input.
func (c *conn) unwatch() {
	if c.x.watch == nil {
		return
	}
	c.in.end += c.x.watch.stop()
	c.x.watch = nil
	c.now = time.Now()
	c.readDeadline = longAgo
	c.setReadDeadline(time.Time{})
}
