package http1

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
)

// send sends the request on a connection to a backend, and reads the start of its response: resp[:conn.n]. The error is
// errNotSent if no connection accepted it.
func (x *Exchange) send(upstream *Upstream) error {
	for {
		conn := upstream.get()
		if conn == nil {
			break
		}
		if err := x.roundTrip(conn); !errors.Is(err, errNotSent) {
			return err
		}
		conn.conn.Close()
	}
	ctx := x.c.base
	if x.watch != nil {
		ctx = x.watch.ctx
	}
	if limit := x.limit(); !limit.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, limit)
		defer cancel()
	}
	conn, err := upstream.dial(ctx)
	if err != nil {
		if x.watch != nil && x.watch.clientGone() {
			return errClientGone
		}
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	err = x.roundTrip(conn)
	if errors.Is(err, errNotSent) {
		conn.conn.Close()
	}
	return err
}

// roundTrip sends the request on a connection and reads the start of the response.
func (x *Exchange) roundTrip(conn *upstreamConn) error {
	x.conn = conn
	conn.out, conn.in = x.out, x.resp
	limit := x.limit()
	if x.watch != nil {
		conn.setReadDeadline(limit)
		x.watch.attach(conn.conn)
	} else if latest := earlier(limit, x.sent.Add(2*watchAfter)); conn.deadline.Sub(x.sent) < watchAfter || conn.deadline.After(latest) {
		// The deadline of an earlier request is kept if it is within these bounds, because setting one is expensive.
		conn.setReadDeadline(latest)
	}
	err := x.await()
	if errors.Is(err, errNotSent) {
		x.conn = nil
	}
	return err
}

// sendRest writes the part of the request that did not fit into one write.
func (x *Exchange) sendRest() error {
	conn := x.conn
	if err := conn.conn.SetWriteDeadline(x.limit()); err != nil {
		return err
	}
	if x.watch != nil && x.watch.clientGone() {
		return errClientGone
	}
	if _, err := conn.conn.Write(conn.out); err != nil {
		if x.watch != nil && x.watch.clientGone() {
			return errClientGone
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return serving.ErrTimeout
		}
		return err
	}
	conn.out = nil
	return conn.conn.SetWriteDeadline(time.Time{})
}
