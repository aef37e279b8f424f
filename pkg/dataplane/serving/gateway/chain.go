package gateway

import (
	"context"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/callers"
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
	// Interrupt ends the request early, for the reason of a rejection, and does not block. Another goroutine may call it between Begin
	// and the end of Forward.
	Interrupt(r *serving.Rejection)
}

// chain runs the steps of a request.
type chain struct {
	options    *Options
	table      *routetable.Table[*pool.Pool]
	pools      *pool.Pools
	transports *proxy.Transports
	recorder   *recorder
	// retired is true after Gateway.Retire.
	retired atomic.Bool
	// http3 is the number of sockets that serve HTTP/3, altSvc the field that advertises it.
	http3  atomic.Int32
	altSvc string
	// limited are the requests at backends with containerConcurrency.
	limited interruptible
}

// inbound is an arriving request.
type inbound struct {
	peer netip.AddrPort
	// public is true if the request comes from outside the cluster.
	public bool
	// tls is true if the connection of the peer uses TLS, https if the client uses HTTPS, possibly with a proxy.
	tls, https bool
	// misdirected is true if the certificate of a TLS connection does not cover the host.
	misdirected bool
	// altSvc is the Alt-Svc field of the response, or empty.
	altSvc string
	// trusted is true if the peer is a trusted proxy, forwardedValid if it is and its Forwarded headers are valid.
	trusted, forwardedValid bool
	// head is set on the fast path, request on the standard path.
	head    *http1.Head
	request *http.Request
	// revision is set if another replica has routed the request. path then has the names of the replicas that forwarded it.
	revision *pool.Pool
	path     []string
	// policy restricts who may send the request. It is nil if all clients may, and after another replica has applied it.
	policy *callers.Policy
	// service is set if the API server has authorized user to send requests to it.
	service *routing.Key
	user    string
	// alias is the host that the requested one stands for, or nil.
	alias *routing.Alias
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
	if in.misdirected {
		return c.reject(in, f, misdirectedRequest)
	}
	host, known := c.lookup(&in)
	if !known {
		return c.reject(in, f, notFound)
	}
	if answer := c.challenge(&in); answer != nil {
		return c.reject(in, f, answer)
	}
	if host != nil && host.RedirectToHTTPS && !in.https && !in.isChallenge() && !in.isProbe() {
		return c.reject(in, f, c.redirect(&in))
	}
	if host != nil && host.Aliased() {
		var rejection *serving.Rejection
		if host, rejection = c.follow(host, &in); rejection != nil {
			return c.reject(in, f, rejection)
		}
	}
	if in.head != nil && !c.fast(host, &in) {
		return false
	}
	revision := c.choose(host, &in)
	if host != nil && in.service == nil {
		in.policy = host.Callers
	}

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

	// Authenticate and authorize.
	if in.policy != nil {
		if rejection := x.check(); rejection != nil {
			return x.reject(rejection)
		}
	}

	for {
		if owner, other := revision.Owner(); other {
			// Own: the replica that owns the Revision acquires the backend.
			x.request.End(c.options.Clock.Now())
			x.beginForward(nil)
			x.result = f.ForwardToOwner(owner)
		} else if grant := x.acquire(); grant.Outcome == pool.Granted {
			// Acquire, and forward.
			x.result = x.forward(grant)
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
	if host != nil && in.service != nil && host.Route() != *in.service {
		return nil, false
	}
	return host, host != nil && !(in.public && host.ClusterLocal)
}

// follow returns the host that an aliased host stands for, and sets the alias.
func (c *chain) follow(host *routetable.Host[*pool.Pool], in *inbound) (*routetable.Host[*pool.Pool], *serving.Rejection) {
	var plain bool
	if in.head != nil {
		in.alias, plain = routetable.AliasOf(host, in.head.Target)
	} else {
		in.alias, plain = routetable.AliasOf(host, in.target())
	}
	if !plain {
		return nil, ambiguousPath
	}
	if in.alias == nil {
		return nil, unservedPath
	}
	followed := routetable.Follow(c.table, in.alias)
	if followed == nil {
		return nil, notFound
	}
	return followed, nil
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

// check returns the rejection of a request without a caller that may send it. No backend is started or held for the request until then.
func (x *exchange) check() (rejection *serving.Rejection) {
	var values [2][]byte
	authorization := values[:0]
	if head := x.in.head; head != nil {
		for i := range head.Fields {
			if f := &head.Fields[i]; string(f.Name) == authorizationField && len(authorization) < len(values) {
				authorization = append(authorization, f.Value)
			}
		}
	} else {
		for _, value := range x.in.request.Header.Values(authorizationField) {
			authorization = append(authorization, []byte(value))
		}
	}
	x.user, rejection, x.result.Err = x.in.policy.Check(x.chain.options.Reviews, x.forwarder, authorization)
	return rejection
}

// acquire waits until the tenant may forward one more request, and for a backend.
func (x *exchange) acquire() pool.Grant {
	x.request.Begin()
	if !x.request.Waited() && !x.entered {
		x.entered = x.pool.Tenant().Enter(x)
	}
	grant := x.request.Acquire(x)
	if x.spans != nil {
		x.spans.granted(&grant, x.chain.options.Clock.Now())
	}
	if grant.Outcome == pool.Granted && !x.entered {
		x.pool.Tenant().Pass()
		x.entered = true
	}
	return grant
}

// forward sends the request to its backend. A request to a Revision with containerConcurrency can be interrupted meanwhile, and is not
// sent if the standing has lapsed since it was granted the backend.
func (x *exchange) forward(grant pool.Grant) serving.Result {
	x.beginForward(grant.Backend)
	revision, known := x.pool.Revision()
	if x.chain.options.Standing == nil || known && revision.ContainerConcurrency == 0 {
		return x.forwarder.Forward(grant.Backend)
	}
	x.chain.limited.add(x)
	defer x.chain.limited.remove(x)
	if term, valid := x.chain.options.Standing.Current(); !valid || term != grant.Term {
		return serving.Result{Outcome: serving.Rejected, Rejection: pool.Suspended}
	}
	return x.forwarder.Forward(grant.Backend)
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
func (f fastForwarder) Interrupt(*serving.Rejection)      { f.exchange.Interrupt() }
func (f fastForwarder) ForwardToOwner(*membership.Member) serving.Result {
	return serving.Result{Outcome: serving.Declined}
}

// interruptible is a set of requests that can be interrupted.
type interruptible struct {
	mu  sync.Mutex
	all map[*exchange]struct{}
}

func (s *interruptible) add(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*exchange]struct{}{}
	}
	s.all[x] = struct{}{}
}

func (s *interruptible) remove(x *exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, x)
}

// interrupt interrupts all requests.
func (s *interruptible) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.all {
		x.forwarder.Interrupt(pool.Suspended)
	}
}
