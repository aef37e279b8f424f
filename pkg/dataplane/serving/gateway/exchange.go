package gateway

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http2"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/linger"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/proxy"
)

// defaultTimeout limits requests to a Revision that is not known yet, defaultMaxTimeout responses that stall. They are the
// API's defaults.
const defaultTimeout, defaultMaxTimeout = 300 * time.Second, 600 * time.Second

var (
	notFound = &serving.Rejection{Status: http.StatusNotFound, Body: "no such host"}
	// unservedPath rejects a path of a host whose application does not exist.
	unservedPath = &serving.Rejection{Status: http.StatusNotFound, Body: "no application for this path"}
	// ambiguousPath rejects a path that an application might take for a path of another one.
	ambiguousPath = &serving.Rejection{
		Status: http.StatusBadRequest,
		Body:   `ambiguous path: on this host, it may not contain "//", "/./", "/../", "\", ";" or encoded letters, digits, controls or -._~/\;`,
	}
)

// exchange is an admitted request and its response (serving 8-1, 8-2). One goroutine uses it.
type exchange struct {
	chain     *chain
	forwarder forwarder
	in        inbound
	pool      *pool.Pool
	begun     time.Time
	result    serving.Result
	trace     trace
	// spans are the spans of a request that is traced, or nil.
	spans *spans
	// user is the verified caller, or empty.
	user string
	// newTrace is true if the trace does not continue the client's.
	newTrace bool

	// request is the request at the pool. It is counted there unless another replica measures it, which owns the Revision.
	request pool.Request
	// entered is true between Enter and Exit of the tenant.
	entered bool
	// series has the metrics of the request, or is nil.
	series *pool.Series
	// held is the number of bytes of the memory budget that the request holds.
	held int64
	// answeredBy is the name of the backend if another replica has acquired it.
	answeredBy string
}

var (
	exchanges = sync.Pool{New: func() any { return new(exchange) }}

	_ http1.Observer = &exchange{}
	_ proxy.Observer = &exchange{}
)

// begin begins the exchange of an admitted request.
func (c *chain) begin(in inbound, p *pool.Pool, f forwarder) *exchange {
	x := exchanges.Get().(*exchange)
	x.chain, x.forwarder, x.in, x.pool, x.request, x.begun = c, f, in, p, p.Request(), c.options.Clock.Now()
	x.beginTrace()
	x.user = in.user
	if _, other := p.Owner(); !other && in.policy == nil {
		x.request.Begin()
	}
	if !in.forwarded() {
		// A forwarded request is counted by the replica that received it from the client.
		x.series = p.Series()
		x.series.Begin()
	}
	return x
}

// end ends the exchange, also after a panic: it releases everything and records the result.
func (x *exchange) end() {
	fault := recover()
	if fault != nil {
		x.result.Err = fmt.Errorf("panic: %v", fault)
	}
	now := x.chain.options.Clock.Now()
	x.exit()
	if cost := flow.CostOf(0, x.result.RequestBytes+x.result.ResponseBytes); cost > 0 {
		x.pool.Tenant().Charge(cost)
	}
	x.pool.Tenant().Done()
	backend := x.request.Backend()
	x.request.End(now)
	if x.held > 0 {
		x.chain.options.Budget.Release(x.pool.Key().Namespace, x.held)
	}
	took := now.Sub(x.begun)
	if x.result.Outcome == serving.Declined {
		// The standard path begins a new exchange.
		x.series.Cancel()
	} else {
		x.series.Done(x.in.method(), x.result.Status, took)
		if x.spans != nil {
			x.spans.end(&x.result, now)
		}
		if log := x.chain.recorder.log; log != nil && !x.in.forwarded() {
			log.write(x.entry(backend, now, took))
		}
	}
	*x = exchange{}
	exchanges.Put(x)
	if fault != nil {
		panic(fault)
	}
}

// exit reports to the tenant that the request is no longer being forwarded.
func (x *exchange) exit() {
	if x.entered {
		x.entered = false
		x.pool.Tenant().Exit()
	}
}

// Wait implements fairness.Waiter.
func (x *exchange) Wait() (context.Context, context.CancelFunc) { return x.forwarder.Wait() }

// Queued implements pool.Waiter.
func (x *exchange) Queued() (context.Context, context.CancelFunc) {
	x.exit()
	if x.spans != nil {
		x.spans.waiting = x.chain.options.Clock.Now()
	}
	return x.forwarder.Wait()
}

// Describe implements pool.Waiter.
func (x *exchange) Describe() (request string, received time.Time) { return x.in.describe(), x.begun }

// Timeouts implements serving.Observer.
func (x *exchange) Timeouts() serving.Timeouts {
	revision, known := x.pool.Revision()
	if !known {
		return serving.Timeouts{Start: defaultTimeout, Stall: x.chain.options.MaxTimeout()}
	}
	t := serving.Timeouts{
		Start: revision.Timeout, ResponseStart: revision.ResponseStartTimeout, Idle: revision.IdleTimeout, Stall: revision.IdleTimeout,
	}
	if t.Stall == 0 {
		t.Stall = x.chain.options.MaxTimeout()
	}
	return t
}

// Hold implements serving.Observer.
func (x *exchange) Hold(bytes int) bool {
	if bytes == 0 {
		return true
	}
	if !x.chain.options.Budget.Reserve(x.pool.Key().Namespace, int64(bytes)) {
		return false
	}
	x.held += int64(bytes)
	return true
}

// ResponseStarted implements serving.Observer.
func (x *exchange) ResponseStarted() {
	x.exit()
	x.request.ResponseStarted()
	if x.spans != nil {
		x.spans.responded(x.chain.options.Clock.Now())
	}
}

// Streaming implements serving.Observer.
func (x *exchange) Streaming(endless bool) { x.request.Streaming(endless) }

// Abandon implements serving.Observer.
func (x *exchange) Abandon() *linger.Place {
	release := x.request.Detach()
	if release == nil {
		return nil
	}
	return linger.NewPlace(x.chain.options.Budget, x.pool.Key().Namespace, release)
}

// Passes implements http1.Observer.
func (x *exchange) Passes(name []byte) bool {
	switch string(name) {
	case tracestateField:
		return !x.newTrace
	case authorizationField:
		return x.in.policy == nil
	}
	return passes(name)
}

// AppendHost implements http1.Observer.
func (x *exchange) AppendHost(dst, client []byte) []byte {
	if x.in.alias != nil {
		return append(dst, x.in.alias.Host...)
	}
	return append(dst, client...)
}

// AppendFields implements http1.Observer.
func (x *exchange) AppendFields(dst []byte) []byte {
	dst = x.in.appendForwardedFields(dst)
	if x.in.alias != nil {
		dst = append(dst, "\r\nK-Original-Host: "...)
		dst = append(dst, x.in.head.Host...)
	}
	dst = append(dst, "\r\nTraceparent: "...)
	dst = append(dst, x.trace[:]...)
	if x.user != "" {
		dst = append(dst, "\r\n"+serving.UserHeader+": "...)
		dst = serving.AppendUser(dst, x.user)
	}
	return append(dst, "\r\n"...)
}

// AltSvc implements http1.Observer.
func (x *exchange) AltSvc() string { return x.in.altSvc }

// Rewrite implements proxy.Observer.
func (x *exchange) Rewrite(r *httputil.ProxyRequest) {
	header := r.Out.Header
	for name := range header {
		if !passes(http2.LowerName(name)) {
			delete(header, name)
		}
	}
	if strings.EqualFold(header.Get("Upgrade"), "h2c") {
		// After such an upgrade, the client could send requests that the gateway does not route.
		header.Del("Upgrade")
		header.Del("Connection")
		header.Del("Http2-Settings")
	}
	for name := range r.Out.Trailer {
		if !passes(strings.ToLower(name)) {
			delete(r.Out.Trailer, name)
		}
	}
	if x.in.forwarded() {
		// The replica that forwarded the request has set them.
		for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Traceparent", serving.UserHeader} {
			header[name] = r.In.Header[name]
		}
		if original := r.In.Header["K-Original-Host"]; original != nil {
			header["K-Original-Host"] = original
		}
		if x.spans != nil {
			header.Set(traceparentField, string(x.trace[:]))
		}
		return
	}
	if x.in.policy != nil {
		// The token is for the gateway.
		header.Del(authorizationField)
	}
	if x.user != "" {
		header.Set(serving.UserHeader, string(serving.AppendUser(nil, x.user)))
	}
	if x.newTrace {
		delete(header, "Tracestate")
	}
	if x.in.alias != nil {
		r.Out.Host = x.in.alias.Host
		header.Set(originalHostField, r.In.Host)
	}
	x.in.setForwardedFields(header)
	header["Traceparent"] = []string{string(x.trace[:])}
}

// Respond implements proxy.Observer.
func (x *exchange) Respond(header http.Header) {
	if x.in.service != nil {
		foreign(header)
	}
	if _, own := header["Alt-Svc"]; x.in.altSvc != "" && !own {
		header.Set("Alt-Svc", x.in.altSvc)
	}
	if b := x.request.Backend(); b != nil && x.in.forwarded() {
		header.Set(instanceHeader, b.Name())
	}
}
