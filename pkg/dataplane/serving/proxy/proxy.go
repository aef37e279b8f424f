// Package proxy forwards requests of net/http: HTTP/2 (serving 8-2), upgrades, bodies that stream. It is the standard path: by
// httputil.ReverseProxy to backends that speak HTTP/1.1, and to other replicas, and by package http2 to backends that speak HTTP/2. It adds time limits for each part of a request, counts bytes, ends WebSockets with a close frame, and
// never resends a request of which a part was sent.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
)

var (
	badBody = &serving.Rejection{Status: http.StatusBadRequest, Body: "the request body is not valid"}

	errBroken = errors.New("the answer broke off")

	// longAgo is a deadline that ends reads immediately.
	longAgo = time.Unix(1, 0)
	// discard drops messages about failed requests: the access log has them.
	discard = log.New(io.Discard, "", 0)
)

// unblockAfter is the time after a timeout at which a connection stops waiting for a peer that does not read: the rejection,
// or the end of a tunnel, is written meanwhile.
const unblockAfter = time.Second

// Observer is the request as Request.Forward sees it.
type Observer interface {
	serving.Observer
	// Rewrite writes the header of the request to the backend.
	Rewrite(r *httputil.ProxyRequest)
	// Respond changes the header of the response to the client.
	Respond(header http.Header)
}

// Send sends a request to a backend, or another replica that forwards it to one. The error wraps an UnreachedError if nothing was
// sent.
type Send func(out *http.Request) (*http.Response, error)

// UnreachedError is the error of a request that was not sent.
type UnreachedError struct{ error }

// Unreached returns the error of a request that was not sent because of err.
func Unreached(err error) error { return &UnreachedError{err} }

// Unwrap returns the cause.
func (e *UnreachedError) Unwrap() error { return e.error }

// Request forwards one request. Readers and writers of bodies may outlive it.
type Request struct {
	transports *Transports
	observer   Observer
	w          http.ResponseWriter
	in         *http.Request
	// client is the context of in, ctx the context of the request, which ends earlier.
	client, ctx context.Context
	cancel      context.CancelCauseFunc
	control     *http.ResponseController
	// body is the body of the request, nil if it has no body.
	body *body
	// retiring is true if connections are closed after their next response.
	retiring bool

	// began is the time of Begin, last the time from then to the latest byte of a body.
	began time.Time
	last  atomic.Int64
	// sent and received count the bodies' bytes.
	sent, received atomic.Int64

	// send sends the current attempt; status is the status code of the response, err the reason why it ended early.
	send   Send
	status int
	err    error
	// limited is true if the place at the backend is kept until the backend has ended the request. Then conn is the connection of
	// the attempt, unless other requests use it too, and finished is true if the backend has ended the request.
	limited  bool
	conn     *countedConn
	finished atomic.Bool
	// aborted is true if the connection of the client must end without a complete response.
	aborted bool

	// mu guards the fields below.
	mu sync.Mutex
	// ended is true once control must not be used anymore.
	ended bool
	// startLimit limits the time until the response starts, silence the time without a byte; 0 means no limit. timer calls checkLimits at due,
	// counted from began; it is nil until a limit is set.
	startLimit, silence, due time.Duration
	timer                    *time.Timer
	// tunnel is the upgraded connection to the backend, nil for other requests.
	tunnel *meteredTunnel
}

// NewRequest returns a request of a client, which ends with End. If retiring is true, its connection ends with the response.
func (t *Transports) NewRequest(w http.ResponseWriter, r *http.Request, retiring bool) *Request {
	ctx := r.Context()
	return &Request{transports: t, w: InterimWriter(w, r), in: r, client: ctx, ctx: ctx, retiring: retiring}
}

// Begin sets the observer, and starts the timeouts, before Wait and Forward.
func (f *Request) Begin(o Observer) {
	f.observer, f.began, f.control = o, time.Now(), http.NewResponseController(f.w)
	f.ctx, f.cancel = context.WithCancelCause(f.client)
	if f.in.Body != nil && f.in.Body != http.NoBody && f.in.ContentLength != 0 {
		f.body = &body{Reader: f.in.Body, request: f, received: f.in.Trailer}
	}
	f.limit(o.Timeouts().Start, 0)
	if f.in.ProtoMajor < 3 {
		// HTTP/3 needs no permission.
		f.err = f.control.EnableFullDuplex()
	}
	// Nil prevents net/http from guessing the type if the backend does not set it.
	f.w.Header()["Content-Type"] = nil
}

// Context returns a context that is canceled when the client closes its connection, or the start timeout has passed.
func (f *Request) Context() context.Context { return f.ctx }

// Sent reports whether a part of the body may have been sent.
func (f *Request) Sent() bool { return f.body != nil && f.body.begun.Load() }

// HasBody reports whether the request has a body.
func (f *Request) HasBody() bool { return f.body != nil }

// Forward sends the request, and its response to the client.
func (f *Request) Forward(send Send) serving.Result {
	f.send = send
	var failure error
	defer f.release()
	f.serve(&failure)
	if failure != nil {
		return f.Failed(failure)
	}
	return f.responded()
}

// responded returns the result of a request with a response.
func (f *Request) responded() serving.Result {
	return serving.Result{Status: f.status, RequestBytes: f.sent.Load(), ResponseBytes: f.received.Load(), Err: f.err}
}

// Failed returns the result of a request that ended by an error before its response, such as the cause of Context.
func (f *Request) Failed(failure error) serving.Result {
	r := serving.Result{RequestBytes: f.sent.Load(), ResponseBytes: f.received.Load(), Err: failure}
	var unreached *UnreachedError
	var rejection *serving.Rejection
	ctx := f.ctx
	switch {
	case errors.As(failure, &unreached) && ctx.Err() == nil && !f.Sent():
		r.Outcome = serving.Unreached
		return r
	case errors.As(failure, &rejection):
	case errors.As(context.Cause(ctx), &rejection):
	case errors.Is(context.Cause(ctx), serving.ErrTimeout):
		rejection = serving.TimedOut
	case f.client.Err() != nil:
		f.aborted = true
		r.Outcome = serving.Canceled
		return r
	case f.body != nil && f.body.malformed.Load():
		rejection = badBody
	default:
		rejection = serving.BrokenOff
	}
	r.Outcome, r.Rejection = serving.Rejected, rejection
	return r
}

// serve makes an attempt. It sets failure if there is no response.
func (f *Request) serve(failure *error) {
	defer func() {
		if fault := recover(); fault != nil {
			if fault != http.ErrAbortHandler { //nolint:errorlint // the value that net/http documents
				panic(fault)
			}
			f.aborted = true
			f.err = cmp.Or(f.err, errBroken)
		}
	}()
	proxy := httputil.ReverseProxy{
		Rewrite: f.rewrite, Transport: f.send, FlushInterval: -1, BufferPool: &f.transports.buffers, ErrorLog: discard, ModifyResponse: f.respond,
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { *failure = err },
	}
	in := f.in.WithContext(f.ctx)
	if f.body != nil {
		in.Body = f.body
	}
	proxy.ServeHTTP(f.w, in)
}

// RoundTrip implements http.RoundTripper.
func (s Send) RoundTrip(out *http.Request) (*http.Response, error) { return s(out) }

// Reject answers the request with a rejection.
func (f *Request) Reject(r *serving.Rejection) error {
	f.endConnection(f.w.Header())
	Reject(f.w, r)
	return nil
}

// Reject writes a rejection.
func Reject(w http.ResponseWriter, r *serving.Rejection) {
	if r.RetryAfter > 0 {
		seconds := (r.RetryAfter + time.Second - 1) / time.Second
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
	}
	if r.Location != "" {
		w.Header().Set("Location", r.Location)
	}
	if r.Challenge != "" {
		w.Header().Set("Www-Authenticate", r.Challenge)
	}
	http.Error(w, r.Body, r.Status)
}

// End ends the request. It panics with http.ErrAbortHandler, for net/http to close the connection, if the response is not
// complete.
func (f *Request) End() {
	if f.cancel == nil {
		return
	}
	f.cancel(nil)
	f.mu.Lock()
	f.ended = true
	if f.timer != nil {
		f.timer.Stop()
	}
	f.mu.Unlock()
	if f.aborted {
		panic(http.ErrAbortHandler)
	}
}

// rewrite makes the request to the backend.
func (f *Request) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme, r.Out.URL.RawQuery = "http", r.In.URL.RawQuery
	f.observer.Rewrite(r)
	if len(r.Out.Trailer) > 0 {
		// Trailers need chunks, even if a client of HTTP/2 has sent the length.
		r.Out.ContentLength = -1
	}
	if f.body != nil {
		f.body.trailer = r.Out.Trailer
	}
}

// respond makes the response to the client.
func (f *Request) respond(res *http.Response) error {
	if res.StatusCode < 100 || res.StatusCode > 999 {
		return serving.BadResponse
	}
	f.status = res.StatusCode
	f.observer.ResponseStarted()
	f.observer.Respond(res.Header)
	timeouts := f.observer.Timeouts()
	if tunnel, ok := res.Body.(io.ReadWriteCloser); ok && res.StatusCode == http.StatusSwitchingProtocols {
		metered := newMeteredTunnel(f, tunnel, res.Header.Get("Upgrade"))
		res.Body = metered
		f.mu.Lock()
		f.tunnel = metered
		f.mu.Unlock()
		f.observer.Streaming(true)
		f.started(cmp.Or(timeouts.Idle, timeouts.Start))
		return nil
	}
	f.started(timeouts.Stall)
	if res.ContentLength != 0 {
		f.observer.Streaming(http1.IsEventStream(res.Header.Get("Content-Type")))
	}
	res.Body = &responseBody{ReadCloser: res.Body, request: f}
	f.endConnection(res.Header)
	return nil
}

// endConnection closes the connection after the response if the gateway retires, or if the response begins before the request's
// body has ended: if the body turns out to be malformed, net/http would parse the rest as the next request.
func (f *Request) endConnection(header http.Header) {
	if f.retiring && f.in.Header.Get("Upgrade") == "" ||
		f.cancel != nil && f.in.ProtoMajor == 1 && f.in.Body != http.NoBody && (f.body == nil || !f.body.ended.Load()) {
		header.Set("Connection", "close")
	}
}

// Interrupt ends the request for the reason of a rejection. It does not block. Another goroutine may call it between Begin and End.
func (f *Request) Interrupt(r *serving.Rejection) { go f.endEarly(r) }

// expire ends a request that timed out.
func (f *Request) expire() { f.endEarly(serving.ErrTimeout) }

// endEarly ends the request with a cause. The read of its body is unblocked only after that: a response waits for the read, and
// net/http treats a failed read as a closed client connection. A tunnel ends after its pending data is sent.
func (f *Request) endEarly(cause error) {
	f.mu.Lock()
	tunnel := f.tunnel
	f.mu.Unlock()
	if tunnel != nil {
		tunnel.end()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancel(cause)
	if f.ended {
		return
	}
	// These fail on closed connections only, as do reads and writes.
	if tunnel == nil {
		f.control.SetReadDeadline(longAgo) //nolint:errcheck // see above
	}
	f.control.SetWriteDeadline(time.Now().Add(unblockAfter)) //nolint:errcheck // see above
}

// started records that the response has started. From now on only the stall timeout applies.
func (f *Request) started(stall time.Duration) {
	f.touch()
	f.limit(0, stall)
}

// limitSilence ends the request if no byte arrives for the idle timeout before the response starts.
func (f *Request) limitSilence() {
	f.touch()
	t := f.observer.Timeouts()
	f.limit(t.Start, t.Idle)
}

// limit sets the limits of the request. Its timer is reset only if it would be late: bytes, and the start of the response, rarely end a limit early.
func (f *Request) limit(start, silence time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.startLimit, f.silence = start, silence
	left, limited := f.left()
	if !limited {
		return
	}
	due := time.Since(f.began) + left
	switch {
	case f.timer == nil:
		f.timer = time.AfterFunc(left, f.checkLimits)
	case due < f.due:
		f.timer.Reset(left)
	default:
		return
	}
	f.due = due
}

// left returns the time that is left of the limits, if there are any. mu is held.
func (f *Request) left() (left time.Duration, limited bool) {
	now := time.Since(f.began)
	if f.startLimit > 0 {
		left, limited = f.startLimit-now, true
	}
	if f.silence > 0 {
		quiet := f.silence - (now - time.Duration(f.last.Load()))
		if !limited || quiet < left {
			left, limited = quiet, true
		}
	}
	return left, limited
}

// checkLimits ends the request if a limit has passed, and otherwise schedules the next check.
func (f *Request) checkLimits() {
	f.mu.Lock()
	left, limited := f.left()
	over := limited && left <= 0 && !f.ended
	switch {
	case f.ended || over:
	case limited:
		f.due = time.Since(f.began) + left
		f.timer.Reset(left)
	default:
		f.timer, f.due = nil, 0
	}
	f.mu.Unlock()
	if over {
		f.expire()
	}
}

// touch records the arrival of a byte.
func (f *Request) touch() { f.last.Store(int64(time.Since(f.began))) }

// InterimWriter returns w without the interim responses of a backend that the client of r must not get: any for HTTP/1.0, which
// does not have them (RFC 9110 15.2), and 100 (Continue) for HTTP/1.1 and HTTP/2. There net/http sends 100 at the first read of the
// body, which the 100 of the backend causes, so the client would get two of them. HTTP/3 has no such rule.
func InterimWriter(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
	if r.ProtoMajor > 2 {
		return w
	}
	return interimWriter{w, !r.ProtoAtLeast(1, 1)}
}

// interimWriter implements InterimWriter.
type interimWriter struct {
	http.ResponseWriter
	// final is true if the client gets no interim responses.
	final bool
}

// WriteHeader implements http.ResponseWriter.
func (w interimWriter) WriteHeader(status int) {
	interim := status < http.StatusOK && status != http.StatusSwitchingProtocols
	if interim && (w.final || status == http.StatusContinue) {
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w interimWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
