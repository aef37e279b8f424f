package gateway

import (
	"context"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/fairness"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/proxy"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// forwarder forwards one request by a protocol stack. The fast path forwards plain HTTP/1.1 requests that have arrived
// completely, the standard path, on net/http, all others.
type forwarder interface {
	// Memory returns the bytes that the request holds.
	Memory() int
	// Begin sets the exchange, and starts its timeouts, before the methods below.
	Begin(x *exchange)
	// Wait returns a context that is canceled when the client closes its connection or the request times out. The caller must
	// call stop.
	Wait() (ctx context.Context, stop context.CancelFunc)
	// Forward sends the request to a backend and the response to the client.
	Forward(b *pool.Backend) serving.Result
	// ForwardToOwner sends the request to the replica that owns its Revision and the response to the client.
	ForwardToOwner(owner *membership.Member) serving.Result
	// Failed returns the result of a request that failed before it was forwarded.
	Failed(err error) serving.Result
	// Reject answers the client with a rejection.
	Reject(r *serving.Rejection) error
}

// chain is the steps of a request.
type chain struct {
	options    *Options
	table      *routetable.Table[*pool.Pool]
	pools      *pool.Pools
	transports *proxy.Transports
	recorder   *recorder
	// retired is true after Gateway.Retire.
	retired atomic.Bool
}

// inbound is an arriving request.
type inbound struct {
	peer netip.AddrPort
	// public is true if the request comes from outside the cluster.
	public bool
	// head is set on the fast path, request on the standard path.
	head    *http1.Head
	request *http.Request
	// revision is set if another replica has routed the request. path then has the names of the replicas that forwarded it.
	revision *pool.Pool
	path     []string
}

// forwarded reports whether another replica has forwarded the request.
func (in *inbound) forwarded() bool { return in.revision != nil }

// serve runs all steps of a request of any protocol. It returns false if f cannot forward the request and nothing was sent:
// net/http must serve it with the standard forwarder.
//
// A connection belongs to one protocol stack at a time. serve therefore declines a request before it chooses a Revision, so that
// the traffic split counts each request once. Admission follows routing because the tenant is the namespace of the Revision.
func (c *chain) serve(in inbound, f forwarder) (served bool) {
	// Route.
	host, known := c.lookup(&in)
	if !known {
		return c.reject(in, f, notFound)
	}
	if in.head != nil && !c.fast(host, &in) {
		return false
	}
	revision := c.choose(host, &in)

	// Admit.
	if !revision.Tenant().Admit() {
		return c.reject(in, f, fairness.OverShare)
	}
	x := c.begin(in, revision, f)
	// Observe.
	defer x.end()
	if !x.Hold(f.Memory()) {
		return x.reject(serving.OverBudget)
	}
	f.Begin(x)

	for {
		if owner, other := revision.Owner(); other {
			// Own: the replica that owns the Revision acquires the backend.
			x.request.End(c.options.Clock.Now())
			x.result = f.ForwardToOwner(owner)
		} else if grant := x.acquire(); grant.Outcome == pool.Granted {
			// Acquire, and forward.
			x.result = f.Forward(grant.Backend)
		} else {
			x.result = x.failed(grant)
		}
		if x.result.Outcome != serving.Unreached {
			break
		}
		if x.unreached() {
			return x.reject(serving.TimedOut)
		}
	}
	switch x.result.Outcome {
	case serving.Rejected:
		return x.reject(x.result.Rejection)
	case serving.Declined:
		return false
	}
	return true
}

// lookup returns the host of a request. known is false if no Route has the host or it is not visible to the client. The host
// is nil if another replica has routed the request.
func (c *chain) lookup(in *inbound) (host *routetable.Host[*pool.Pool], known bool) {
	switch {
	case in.forwarded():
		return nil, true
	case in.head != nil:
		host = routetable.Lookup(c.table, in.head.Host)
	default:
		host = routetable.Lookup(c.table, in.request.Host)
	}
	return host, host != nil && !(in.public && host.ClusterLocal)
}

// fast reports whether the fast path can forward all requests to a host: each Revision that may be chosen speaks HTTP/1.1
// and is owned by this replica.
func (c *chain) fast(host *routetable.Host[*pool.Pool], in *inbound) bool {
	if p, ok := c.tagged(host, in); ok {
		return plain(p)
	}
	return host.All(plain)
}

func plain(p *pool.Pool) bool {
	revision, known := p.Revision()
	_, other := p.Owner()
	return known && revision.Protocol != routing.H2C && !other
}

// choose returns the Revision of a request, by its tag or the traffic split.
func (c *chain) choose(host *routetable.Host[*pool.Pool], in *inbound) *pool.Pool {
	if in.forwarded() {
		return in.revision
	}
	if p, ok := c.tagged(host, in); ok {
		return p
	}
	return host.Choose()
}

// tagged returns the Revision that the tag header names.
func (c *chain) tagged(host *routetable.Host[*pool.Pool], in *inbound) (p *pool.Pool, ok bool) {
	var tag string
	if in.head != nil {
		tag = string(in.head.Get(tagField))
	} else {
		tag = in.request.Header.Get(tagField)
	}
	if tag == "" || !c.options.TagHeader() {
		return nil, false
	}
	return host.Tagged(tag)
}

// reject answers a request that is rejected before its admission.
func (c *chain) reject(in inbound, f forwarder, r *serving.Rejection) (served bool) {
	if !in.forwarded() {
		c.recorder.rejected(in, r)
	}
	f.Reject(r) //nolint:errcheck // the client may be gone
	return true
}

// acquire waits until the tenant may forward one more request, and for a backend.
func (x *exchange) acquire() pool.Grant {
	x.request.Begin()
	if !x.request.Waited() && !x.entered {
		x.entered = x.pool.Tenant().Enter(x)
	}
	grant := x.request.Acquire(x)
	if grant.Outcome == pool.Granted && !x.entered {
		x.pool.Tenant().Pass()
		x.entered = true
	}
	return grant
}

// failed returns the result of a request that acquired no backend.
func (x *exchange) failed(grant pool.Grant) serving.Result {
	switch grant.Outcome {
	case pool.Moved:
		return serving.Result{Outcome: serving.Unreached}
	case pool.Canceled:
		return x.forwarder.Failed(grant.Err)
	}
	return serving.Result{Outcome: serving.Rejected, Rejection: grant.Rejection, Err: grant.Err}
}

// maxReach bounds the time to reach a backend of a Revision without a timeout.
const maxReach = time.Minute

// unreached prepares the next attempt after one that reached no backend. It reports whether it is too late for another.
func (x *exchange) unreached() (late bool) {
	x.exit()
	if x.request.Backend() == nil {
		return false
	}
	x.request.Unreachable()
	return x.Timeouts().Start == 0 && x.chain.options.Clock.Since(x.begun) > maxReach
}

// reject answers the request with a rejection.
func (x *exchange) reject(r *serving.Rejection) (served bool) {
	if x.result.Err == nil {
		x.result.Err = r
	}
	x.result.Status = r.Status
	if err := x.forwarder.Reject(r); err != nil {
		x.result.Status, x.result.Err = 0, err
	}
	return true
}

// fastForwarder is the fast path.
type fastForwarder struct{ exchange *http1.Exchange }

func (f fastForwarder) Memory() int       { return f.exchange.Memory() }
func (f fastForwarder) Begin(x *exchange) { f.exchange.Begin(x) }
func (f fastForwarder) Wait() (context.Context, context.CancelFunc) {
	return f.exchange.Wait()
}
func (f fastForwarder) Forward(b *pool.Backend) serving.Result {
	return f.exchange.Forward(b.Upstream())
}
func (f fastForwarder) Failed(err error) serving.Result   { return f.exchange.Failed(err) }
func (f fastForwarder) Reject(r *serving.Rejection) error { return f.exchange.Reject(r) }
func (f fastForwarder) ForwardToOwner(*membership.Member) serving.Result {
	return serving.Result{Outcome: serving.Declined}
}
