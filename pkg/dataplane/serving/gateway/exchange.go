package gateway

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// defaultTimeout limits requests to a revision that is not known yet, defaultMaxTimeout responses that stall: they are those
// of the API.
const defaultTimeout, defaultMaxTimeout = 300 * time.Second, 600 * time.Second

var (
	notFound = &http1.Refusal{Status: http.StatusNotFound, Body: "no such host"}

	_ http1.Router   = &Gateway{}
	_ http1.Exchange = &exchange{}
)

// exchange is one request and its answer (serving 8-1, 8-2). One goroutine uses it.
type exchange struct {
	gateway  *Gateway
	pool     *pool
	instance *instance
	begun    time.Time
	peer     netip.AddrPort
	trace    trace
	// begins tells that the trace does not go on from the client's.
	begins bool
	// waited tells that it was in the queue, first that a cold start began with it.
	waited, first bool
	// head or request is what is asked for: on the plain path the one, on the standard path the other.
	head    *http1.Head
	request *http.Request
	// series is where it is counted, or nil.
	series *series
	// counted tells that it counts as the pool's, entered that it is one of those that its tenant has forwarded, moved
	// that the standard path begins it anew.
	counted, entered, moved bool
	// stream is the response once it is in progress, nil for most.
	stream *stream
	// held is how much of the budget it holds, in bytes.
	held int64
	// relayed tells that it came from another replica, by way of path. answered is the instance that another replica
	// sent it to.
	relayed  bool
	path     []string
	answered string
}

var exchanges = sync.Pool{New: func() any { return new(exchange) }}

// public is the gateway as it is seen from outside: without the hosts that are for the cluster only.
type public struct{ gateway *Gateway }

// Begin implements http1.Router. Hosts with a revision that does not speak HTTP/1.1, is not known yet, or belongs to
// another replica, are for the standard path: that is decided before one is chosen, so that the choice stays exact.
func (g *Gateway) Begin(head *http1.Head, peer netip.AddrPort) (http1.Exchange, *http1.Refusal) {
	return g.beginPlain(head, peer, false)
}

// Begin implements http1.Router.
func (p *public) Begin(head *http1.Head, peer netip.AddrPort) (http1.Exchange, *http1.Refusal) {
	return p.gateway.beginPlain(head, peer, true)
}

func (g *Gateway) beginPlain(head *http1.Head, peer netip.AddrPort, public bool) (http1.Exchange, *http1.Refusal) {
	h := routetable.Lookup(g.table, head.Host)
	if h == nil || public && h.ClusterLocal {
		g.refused(peer, notFound, head, nil)
		return nil, notFound
	}
	p := g.tagged(h, string(head.Get(tagField)))
	if p == nil {
		if !h.All((*pool).plain) {
			return nil, nil
		}
		p = h.Choose()
	} else if !p.plain() {
		return nil, nil
	}
	if refusal := p.tenant.admit(); refusal != nil {
		g.refused(peer, refusal, head, nil)
		return nil, refusal
	}
	x := g.begin(p, peer, string(only(head, traceparentField)))
	x.head = head
	return x, nil
}

// only returns the value of the only field of a name, or nil.
func only(head *http1.Head, name string) (value []byte) {
	found := false
	for i := range head.Fields {
		if f := &head.Fields[i]; string(f.Name) == name {
			if found {
				return nil
			}
			value, found = f.Value, true
		}
	}
	return value
}

// plain tells whether the revision is known to speak HTTP/1.1, and to be this replica's.
func (p *pool) plain() bool {
	spec := p.spec.Load()
	return spec != nil && spec.Protocol != routing.H2C && p.owner.Load() == nil
}

// tagged returns the pool that the tag header picks, or nil.
func (g *Gateway) tagged(h *routetable.Host[*pool], tag string) *pool {
	if tag == "" || !g.options.TagHeader() {
		return nil
	}
	p, _ := h.Tagged(tag)
	return p
}

// begin begins an exchange with a chosen revision.
func (g *Gateway) begin(p *pool, peer netip.AddrPort, traceparent string) *exchange {
	x := exchanges.Get().(*exchange)
	x.gateway, x.pool, x.peer, x.begun = g, p, peer, g.options.Clock.Now()
	x.begins = x.trace.set(traceparent)
	if p.owner.Load() == nil {
		p.begin(x.begun)
		x.counted = true
	}
	if x.series = p.measured(); x.series != nil {
		x.series.inFlight.Inc()
	}
	return x
}

// TryAcquire implements http1.Exchange.
func (x *exchange) TryAcquire() *http1.Upstream {
	if x.waited || !x.tryEnter() {
		return nil
	}
	if x.instance = x.pool.tryAcquire(); x.instance == nil {
		x.leave()
		return nil
	}
	return x.instance.upstream
}

// Acquire implements http1.Exchange.
func (x *exchange) Acquire(ctx context.Context) (*http1.Upstream, *http1.Refusal) {
	if !x.waited {
		x.enter(ctx)
		if x.instance = x.pool.tryAcquire(); x.instance != nil { //nolint:contextcheck // what it may ask other replicas is for all that wait
			return x.instance.upstream, nil
		}
		x.leave()
	}
	inst, first, refusal := x.pool.acquire(ctx, x.waited)
	x.waited, x.first = true, x.first || first
	if inst == nil {
		x.moved = refusal == http1.HandOver
		return nil, refusal
	}
	x.instance = inst
	x.pass()
	return inst.upstream, nil
}

// Unreachable implements http1.Exchange.
func (x *exchange) Unreachable(*http1.Upstream) {
	x.pool.unreachable(x.instance)
	x.instance, x.waited = nil, true
	x.leave()
}

// Timeouts implements http1.Exchange.
func (x *exchange) Timeouts() http1.Timeouts {
	spec := x.pool.spec.Load()
	if spec == nil {
		return http1.Timeouts{Start: defaultTimeout, Stall: x.gateway.options.MaxTimeout()}
	}
	t := http1.Timeouts{Start: spec.Timeout, ResponseStart: spec.ResponseStartTimeout, Idle: spec.IdleTimeout, Stall: spec.IdleTimeout}
	if t.Stall == 0 {
		t.Stall = x.gateway.options.MaxTimeout()
	}
	return t
}

// Passes implements http1.Exchange.
func (x *exchange) Passes(name []byte) bool {
	return passes(name) && !(x.begins && string(name) == tracestateField)
}

// AppendFields implements http1.Exchange: what there was of the fields goes on, with this hop's part appended.
func (x *exchange) AppendFields(dst []byte) []byte {
	dst = append(dst, "X-Forwarded-For: "...)
	dst = appendJoined(dst, x.head, forwardedForField)
	dst = x.appendPeer(dst)
	dst = append(dst, "\r\nX-Forwarded-Host: "...)
	dst = append(dst, x.head.Host...)
	dst = append(dst, "\r\nX-Forwarded-Proto: http\r\nForwarded: "...)
	dst = appendJoined(dst, x.head, forwardedField)
	dst = appendForwarded(dst, x.peer.Addr(), x.head.Host)
	dst = append(dst, "\r\nTraceparent: "...)
	dst = append(dst, x.trace[:]...)
	return append(dst, "\r\n"...)
}

func (x *exchange) appendPeer(dst []byte) []byte {
	if !x.peer.IsValid() {
		return append(dst, "unknown"...)
	}
	return x.peer.Addr().WithZone("").AppendTo(dst)
}

// appendJoined appends the values of all fields of a name, each followed by a comma, unless they cannot be extended.
func appendJoined(dst []byte, head *http1.Head, name string) []byte {
	size := len(dst)
	for i := range head.Fields {
		f := &head.Fields[i]
		if string(f.Name) != name || len(f.Value) == 0 {
			continue
		}
		if openQuote(f.Value) {
			return dst[:size]
		}
		dst = append(dst, f.Value...)
		dst = append(dst, ", "...)
	}
	return dst
}

// Answered implements http1.Exchange.
func (x *exchange) Answered() {
	x.leave()
	if x.first {
		x.first = false
		x.pool.forwarded()
	}
}

// Done implements http1.Exchange.
func (x *exchange) Done(result http1.Result) {
	now := x.gateway.options.Clock.Now()
	x.leave()
	x.pool.tenant.done()
	if x.counted {
		x.pool.end(x.instance, x.stream, now)
	}
	took := now.Sub(x.begun)
	if x.held > 0 {
		x.gateway.options.Budget.Release(x.pool.key.Namespace, x.held)
	}
	handedOver := x.moved && x.head != nil
	switch {
	case x.series == nil:
	case handedOver:
		x.series.inFlight.Dec()
	default:
		x.series.done(result.Status, took)
	}
	if log := x.gateway.log; log != nil && !x.relayed && !handedOver {
		log.write(x.entry(now, took, result))
	}
	*x = exchange{}
	exchanges.Put(x)
}

// count has the exchange count as the pool's: what is measured of a revision is measured by the replica it belongs to.
func (x *exchange) count() {
	if !x.counted {
		x.counted = true
		x.pool.begin(x.gateway.options.Clock.Now())
	}
}

func (x *exchange) uncount() {
	if x.counted {
		x.counted = false
		x.pool.end(nil, nil, x.gateway.options.Clock.Now())
	}
}
