package gateway

import (
	"context"
	"net/http"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/proxy"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// The estimated memory of requests on the standard path, in bytes.
const (
	// standardSize covers the goroutines of a request and the buffers of both connections.
	standardSize = 64 << 10
	// fieldSize is the size of a header field in addition to its name and value, headCopies the number of copies of a head.
	fieldSize, headCopies = 64, 4
)

var (
	noTunnel  = &serving.Rejection{Status: http.StatusMethodNotAllowed, Body: "CONNECT is not supported"}
	badTarget = &serving.Rejection{Status: http.StatusBadRequest, Body: "malformed request target"}
	// malformedHost rejects an authority that a lookup of its host name would accept, such as "host:@other".
	malformedHost = &serving.Rejection{Status: http.StatusBadRequest, Body: "malformed Host"}
	badHost       = &serving.Rejection{Status: http.StatusBadRequest, Body: "the Host header differs from the authority"}
)

// standardForwarder implements forwarder by the standard path.
type standardForwarder struct {
	*proxy.Request
	chain    *chain
	exchange *exchange
	in       *http.Request
	attempts ownership.Attempts
}

func (c *chain) standard(w http.ResponseWriter, r *http.Request) *standardForwarder {
	return &standardForwarder{
		Request: c.transports.NewRequest(w, r, c.retired.Load() && r.ProtoMajor < 3), chain: c, in: r, attempts: ownership.Attempts{Pacing: ownerPacing},
	}
}

// serveHTTP serves a request from net/http.
func (c *chain) serveHTTP(w http.ResponseWriter, in inbound) {
	c.identify(&in)
	f := c.standard(w, in.request)
	defer f.End()
	if rejection, malformed := unfit(in.request); malformed {
		c.reject(in, f, rejection)
		return
	}
	c.serve(in, f)
}

// unfit returns the rejection of a request that is not forwarded because it would be malformed in HTTP/1.1, although it is
// valid in HTTP/2.
func unfit(r *http.Request) (rejection *serving.Rejection, malformed bool) {
	if r.Method == http.MethodConnect {
		return noTunnel, true
	}
	if r.RequestURI == "*" && r.Method != http.MethodOptions {
		return badTarget, true
	}
	if r.Host != "" && !http1.ValidHost(r.Host) {
		return malformedHost, true
	}
	for _, host := range r.Header["Host"] {
		if !strings.EqualFold(host, r.Host) {
			return badHost, true
		}
	}
	return nil, false
}

// Memory implements forwarder.
func (f *standardForwarder) Memory() int {
	head := len(f.in.RequestURI) + len(f.in.Host)
	for name, values := range f.in.Header {
		for _, value := range values {
			head += len(name) + len(value) + fieldSize
		}
	}
	return standardSize + headCopies*head
}

// Begin implements forwarder.
func (f *standardForwarder) Begin(x *exchange) {
	f.exchange = x
	f.Request.Begin(x)
}

// Wait implements forwarder.
func (f *standardForwarder) Wait() (context.Context, context.CancelFunc) {
	return f.Context(), func() {}
}

// Forward implements forwarder.
func (f *standardForwarder) Forward(b *pool.Backend) serving.Result {
	revision, known := f.exchange.pool.Revision()
	limited := known && revision.ContainerConcurrency > 0
	if known && revision.Protocol == routing.H2C && !proxy.Upgrades(f.in) {
		return f.ForwardH2C(b.Upstream().Address(), limited)
	}
	return f.Request.Forward(f.Backend(b.Upstream().Address(), limited))
}
