package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
)

var (
	noTunnel  = &http1.Refusal{Status: http.StatusMethodNotAllowed, Body: "CONNECT is not supported"}
	badTarget = &http1.Refusal{Status: http.StatusBadRequest, Body: "malformed request target"}
	badHost   = &http1.Refusal{Status: http.StatusBadRequest, Body: "the Host header differs from the authority"}
	badBody   = &http1.Refusal{Status: http.StatusBadRequest, Body: "the request body is not valid"}
	badAnswer = &http1.Refusal{Status: http.StatusBadGateway, Body: "the instance's answer is not valid HTTP"}
	brokenOff = &http1.Refusal{Status: http.StatusBadGateway, Body: "the instance closed the connection without an answer"}

	errTimeout = fmt.Errorf("request timeout: %w", context.DeadlineExceeded)
	errBroken  = errors.New("the answer broke off")

	// longAgo is a deadline that ends reads at once.
	longAgo = time.Unix(1, 0)

	_ http.Handler = &Gateway{}
	_ http.Handler = &public{}
)

// unblockAfter is how long after a timeout a connection stops waiting for a peer that does not read: the refusal, or the end
// of a tunnel, is written meanwhile.
const unblockAfter = time.Second

// forward is the way of a request through the standard path. What reads and writes bodies may outlive it.
type forward struct {
	exchange *exchange
	client   context.Context
	cancel   context.CancelCauseFunc
	// start ends the request if its response does not start in time; nil if there is no such limit.
	start *time.Timer
	// began is when the request came here, last how long after that the latest byte of a body came.
	began time.Time
	last  atomic.Int64
	// sent and received count the bodies' bytes; badBody tells that the client's was not valid.
	sent, received atomic.Int64
	badBody        atomic.Bool
	// body is that of the request once it is about to be sent, nil where there is none.
	body   *meteredRequest
	status int
	err    error

	control *http.ResponseController
	// mu guards the fields below.
	mu sync.Mutex
	// ended is true once control may not be used any more.
	ended bool
	// silence limits the time without a byte, 0 does not. quiet is the timer for it; nil until there is a limit.
	silence time.Duration
	quiet   *time.Timer
	// tunnel is the upgraded connection to the instance, nil for other requests.
	tunnel *meteredTunnel
}

type forwardKey struct{}

func forwardOf(r *http.Request) *forward { return r.Context().Value(forwardKey{}).(*forward) }

// refusedError is the error of a request that the gateway answers itself.
type refusedError struct{ *http1.Refusal }

func (e refusedError) Error() string { return e.Body }

// ServeHTTP serves a request by the standard path: HTTP/2 (serving 8-2), upgrades, bodies that stream.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) { g.serveStandard(w, r, false) }

// ServeHTTP is that of the Gateway, for public hosts.
func (p *public) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.gateway.serveStandard(w, r, true)
}

func (g *Gateway) serveStandard(w http.ResponseWriter, r *http.Request, public bool) {
	// An invalid one is the zero value, which stands for an unknown peer.
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
	h := routetable.Lookup(g.table, r.Host)
	if h != nil && h.ClusterLocal && public {
		h = nil
	}
	refusal := unfit(r)
	if refusal == nil && h == nil {
		refusal = notFound
	}
	if refusal != nil {
		g.refused(peer, refusal, nil, r)
		g.endConnection(w.Header(), r)
		answer(w, refusal)
		return
	}
	p := g.tagged(h, r.Header.Get(tagField))
	if p == nil {
		p = h.Choose()
	}
	traceparent := ""
	if values := r.Header.Values(traceparentField); len(values) == 1 {
		traceparent = values[0]
	}
	if refusal := p.tenant.admit(); refusal != nil {
		g.refused(peer, refusal, nil, r)
		g.endConnection(w.Header(), r)
		answer(w, refusal)
		return
	}
	x := g.begin(p, peer, traceparent)
	x.request = r
	if !r.ProtoAtLeast(1, 1) {
		w = finalWriter{w}
	}
	if !x.Hold(memoryOf(r)) {
		g.endConnection(w.Header(), r)
		answer(w, http1.OverBudget)
		x.Done(http1.Result{Status: http1.OverBudget.Status})
		return
	}
	g.forward(w, r, x)
}

// unfit says why a request is not forwarded, or returns nil: what HTTP/2 lets pass may not be so for HTTP/1.
func unfit(r *http.Request) *http1.Refusal {
	if r.Method == http.MethodConnect {
		return noTunnel
	}
	if r.RequestURI == "*" && r.Method != http.MethodOptions {
		return badTarget
	}
	for _, host := range r.Header["Host"] {
		if !strings.EqualFold(host, r.Host) {
			return badHost
		}
	}
	return nil
}

// finalWriter drops interim answers, which clients of HTTP/1.0 do not know (RFC 9110 15.2).
type finalWriter struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w finalWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Unwrap is for http.ResponseController.
func (w finalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (g *Gateway) forward(w http.ResponseWriter, r *http.Request, x *exchange) {
	f := &forward{exchange: x, client: r.Context(), began: time.Now(), control: http.NewResponseController(w)}
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), forwardKey{}, f))
	f.cancel = cancel
	if limit := x.Timeouts().Start; limit > 0 {
		f.start = time.AfterFunc(limit, f.expire)
	}
	f.err = f.control.EnableFullDuplex()
	defer f.done()
	// Not guessed where the instance does not say it.
	w.Header()["Content-Type"] = nil
	g.proxy.ServeHTTP(w, r.WithContext(ctx))
}

// expire ends a request that takes too long. What reads its body is unblocked after that, not by a deadline set
// before: an answer waits for it, and net/http takes a read that fails for a client that left. A tunnel ends with what it
// still sends.
func (f *forward) expire() {
	f.mu.Lock()
	tunnel := f.tunnel
	f.mu.Unlock()
	if tunnel != nil {
		tunnel.end()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cancel(errTimeout)
	if f.ended {
		return
	}
	// These fail on closed connections only, as do reads and writes.
	if tunnel == nil {
		f.control.SetReadDeadline(longAgo) //nolint:errcheck // see above
	}
	f.control.SetWriteDeadline(time.Now().Add(unblockAfter)) //nolint:errcheck // see above
}

// started notes that the response has started: from now on only its stalling is limited.
func (f *forward) started(stall time.Duration) {
	if f.start != nil {
		f.start.Stop()
	}
	f.limitSilence(stall)
}

// limitSilence ends the request when no byte comes for some time; 0 is no limit.
func (f *forward) limitSilence(limit time.Duration) {
	f.touch()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.silence = limit
	switch {
	case limit == 0:
	case f.quiet == nil:
		f.quiet = time.AfterFunc(limit, f.checkSilence)
	default:
		f.quiet.Reset(limit)
	}
}

// checkSilence ends the request if no byte came for too long, and looks again later otherwise: so a byte costs no timer.
func (f *forward) checkSilence() {
	f.mu.Lock()
	left := f.silence - (time.Since(f.began) - time.Duration(f.last.Load()))
	over := left <= 0 && f.silence > 0 && !f.ended
	if left > 0 && !f.ended {
		f.quiet.Reset(left)
	}
	f.mu.Unlock()
	if over {
		f.expire()
	}
}

// done ends the exchange; where the answer breaks off, by a panic that goes on.
func (f *forward) done() {
	broken := recover()
	if broken != nil && f.err == nil {
		f.err = errBroken
	}
	f.cancel(nil)
	if f.start != nil {
		f.start.Stop()
	}
	f.mu.Lock()
	f.ended = true
	if f.quiet != nil {
		f.quiet.Stop()
	}
	f.mu.Unlock()
	f.exchange.Done(http1.Result{
		Status: f.status, RequestBytes: f.sent.Load(), ResponseBytes: f.received.Load(), Err: f.err,
	})
	if broken != nil {
		panic(broken)
	}
}

// touch notes that a byte came.
func (f *forward) touch() { f.last.Store(int64(time.Since(f.began))) }

// newProxy returns the proxy of the standard path. Its requests carry a forward.
func newProxy(relays relays) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     newTransports(relays),
		FlushInterval: -1,
		// Why a request failed is in the access log.
		ErrorLog:       log.New(io.Discard, "", 0),
		ModifyResponse: meter,
		ErrorHandler:   fail,
	}
}

// rewrite makes the header of the request to the instance.
func rewrite(r *httputil.ProxyRequest) {
	x := forwardOf(r.In).exchange
	r.Out.URL.Scheme, r.Out.URL.RawQuery = "http", r.In.URL.RawQuery
	header := r.Out.Header
	for name := range header {
		if !passes(strings.ToLower(name)) {
			delete(header, name)
		}
	}
	if strings.EqualFold(header.Get("Upgrade"), "h2c") {
		// What comes after such an upgrade would be requests that nobody routes.
		header.Del("Upgrade")
		header.Del("Connection")
		header.Del("Http2-Settings")
	}
	for name := range r.Out.Trailer {
		if !passes(strings.ToLower(name)) {
			delete(r.Out.Trailer, name)
		}
	}
	if len(r.Out.Trailer) > 0 {
		// They need chunks, also where a client of HTTP/2 has told the length.
		r.Out.ContentLength = -1
	}
	if x.relayed {
		// The replica that the request came through has written them.
		for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Traceparent"} {
			header[name] = r.In.Header[name]
		}
		return
	}
	if x.begins {
		header.Del(tracestateField)
	}
	header.Set(forwardedForField, string(x.appendPeer(joined(r.In.Header, forwardedForField))))
	header.Set(forwardedHostField, r.In.Host)
	header.Set(forwardedProtoField, "http")
	header.Set(forwardedField, string(appendForwarded(joined(r.In.Header, forwardedField), x.peer.Addr(), r.In.Host)))
	header.Set(traceparentField, string(x.trace[:]))
}

// joined returns the values of all fields of a name that can be extended, each followed by a comma.
func joined(header http.Header, name string) (all []byte) {
	for _, value := range header.Values(name) {
		if openQuote(value) {
			return nil
		}
		if value != "" {
			all = append(append(all, value...), ", "...)
		}
	}
	return all
}

// meter has the bytes of an answer counted.
func meter(res *http.Response) error {
	f := forwardOf(res.Request)
	if res.StatusCode < 100 || res.StatusCode > 999 {
		return refusedError{badAnswer}
	}
	f.status = res.StatusCode
	f.exchange.Answered()
	if x := f.exchange; x.relayed && x.instance != nil {
		res.Header.Set(instanceHeader, x.instance.name)
	}
	timeouts := f.exchange.Timeouts()
	if tunnel, ok := res.Body.(io.ReadWriteCloser); ok && res.StatusCode == http.StatusSwitchingProtocols {
		metered := newMeteredTunnel(f, tunnel, res.Header.Get("Upgrade"))
		res.Body = metered
		f.mu.Lock()
		f.tunnel = metered
		f.mu.Unlock()
		f.exchange.Streaming(true)
		f.started(cmp.Or(timeouts.Idle, timeouts.Start))
		return nil
	}
	f.started(timeouts.Stall)
	if res.ContentLength != 0 {
		f.exchange.Streaming(http1.IsEventStream(res.Header.Get("Content-Type")))
	}
	res.Body = &meteredAnswer{ReadCloser: res.Body, forward: f}
	f.endConnection(res.Header)
	return nil
}

// endConnection has a connection end with the answer that begins before the request's body has ended: if that
// turns out to be malformed, net/http would take what follows for the next request.
func (f *forward) endConnection(header http.Header) {
	in := f.exchange.request
	f.exchange.gateway.endConnection(header, in)
	if in.ProtoMajor == 1 && in.Body != http.NoBody && (f.body == nil || !f.body.ended.Load()) {
		header.Set("Connection", "close")
	}
}

// endConnection has a connection end with the current answer when the gateway is about to stop.
func (g *Gateway) endConnection(header http.Header, r *http.Request) {
	if g.retired.Load() && r.Header.Get("Upgrade") == "" {
		header.Set("Connection", "close")
	}
}

// fail answers a request that got no answer.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	f := forwardOf(r)
	f.err = err
	refusal := brokenOff
	var refused refusedError
	switch {
	case errors.As(err, &refused):
		refusal = refused.Refusal
	case errors.Is(context.Cause(r.Context()), errTimeout):
		refusal = tooLate
	case f.client.Err() != nil:
		f.status = 0
		panic(http.ErrAbortHandler)
	case f.badBody.Load():
		refusal = badBody
	}
	f.status = refusal.Status
	f.endConnection(w.Header())
	answer(w, refusal)
}

// answer sends a refusal.
func answer(w http.ResponseWriter, refusal *http1.Refusal) {
	if refusal.RetryAfter > 0 {
		seconds := (refusal.RetryAfter + time.Second - 1) / time.Second
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds)))
	}
	http.Error(w, refusal.Body, refusal.Status)
}
