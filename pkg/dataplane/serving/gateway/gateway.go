// Package gateway routes HTTP requests to Revision backends by Host header and traffic split, queueing them until a backend has
// capacity. chain.go lists the steps of a request; sibling packages implement most of them.
package gateway

import (
	"context"
	"hash/maphash"
	"io"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/fairness"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/proxy"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

const (
	// defaultMemory is the budget without Options.Budget, largestRequest an upper bound of a request's memory, in bytes.
	defaultMemory, largestRequest = 256 << 20, 1 << 20
	// defaultBurstCapacity is the target burst capacity without Options.TargetBurstCapacity.
	defaultBurstCapacity = 211
)

// Options configure a Gateway.
type Options struct {
	// Activate is called when a request begins to wait for a Revision without a ready backend, after it was counted as
	// waiting. The request's goroutine calls it: it must not block. Nil does nothing.
	Activate func(revision routing.Key)
	// Drained is called once when a draining backend has only long-lived requests left. It must not block. Nil does nothing.
	Drained func(revision routing.Key, instance string)
	// TagHeader reports whether the Knative-Serving-Tag header selects a tag. Nil disables it.
	TagHeader func() bool
	// TargetBurstCapacity returns the target burst capacity of Revisions that set none: 0 is none, -1 unlimited. Nil means the
	// default of config-autoscaler.
	TargetBurstCapacity func() float64
	// MaxTimeout returns the limit on stalled responses of Revisions without an idle timeout. Nil means the default of
	// max-revision-timeout-seconds.
	MaxTimeout func() time.Duration
	// AccessLog receives a line of JSON for each request while Serve runs. Nil disables the access log.
	AccessLog io.Writer
	// Register registers the metrics, such as legacyregistry.MustRegister. Nil disables them.
	Register func(...metrics.Registerable)
	// Tracing selects the requests that are traced, and makes their spans. Nil traces none.
	Tracing Tracing
	// Clock is the clock; nil means the real one.
	Clock clock.PassiveClock
	// Budget bounds the bytes that requests hold. Nil means a budget of 256 MiB for this gateway alone.
	Budget *flow.Budget
	// StopTimeout limits the time to drain in-flight requests when Serve stops; 0 means 30 s.
	StopTimeout time.Duration
	// StandardOnly disables the fast path: net/http forwards all requests.
	StandardOnly bool
	// TrustedProxies are the addresses of proxies whose Forwarded and X-Forwarded headers are kept.
	TrustedProxies []netip.Prefix
	// ProxyProtocol makes ServePublic and ServeTLS require a header of the PROXY protocol, version 1 or 2, from TrustedProxies. The client
	// is the one that the header names. Other peers connect without a header.
	ProxyProtocol bool
	// HTTPSPort is the port of HTTPS for clients, to which requests are redirected, and of HTTP/3; 0 means 443.
	HTTPSPort int
	// Certificates has the ACME challenges to answer. Nil answers none.
	Certificates *certificates.Store
	// Reviews authenticate and authorize the callers of restricted Routes. Nil rejects them.
	Reviews *reviews.Reviews
	// Listeners is the number of listeners that are served, which share the limit on connections equally; 0 means one.
	Listeners int
	// Members are the replicas. One of them owns each Revision with containerConcurrency, by the key
	// "revision/<namespace>/<name>": it enforces the limit for requests to all gateways (serving 8-7). Nil means a single
	// replica. The membership must be known before the first request.
	Members *membership.View
	// Forward sends requests to other replicas' PeerHandler: the host of the URL is Member.Address, the scheme https. It
	// must support HTTP/2. If it is nil, other replicas are unreachable.
	Forward http.RoundTripper
	// Standing is confirmed by each renewal of the Lease of this replica. While it has lapsed, requests to Revisions with
	// containerConcurrency that this replica owns are rejected. Nil means that it never lapses.
	Standing *ownership.Standing
	// UpToDate reports whether Members follows from the latest renewal of a replica's Lease, by a consistent read. Nil means true.
	UpToDate func(ctx context.Context, name string) (bool, error)
}

// Gateway routes and forwards requests. Changes apply to new requests, not to requests in flight. Its methods may be called
// concurrently.
type Gateway struct {
	*routes
	*drains

	options  Options
	pools    *pool.Pools
	replicas *replicas
	fairness *fairness.Fairness
	chain    *chain
	// adjusting is true while a call of Serve runs fairness.
	adjusting atomic.Bool
}

// New returns a Gateway, to be started by Serve.
func New(options Options) *Gateway {
	if options.Activate == nil {
		options.Activate = func(routing.Key) {}
	}
	if options.Drained == nil {
		options.Drained = func(routing.Key, string) {}
	}
	if options.TagHeader == nil {
		options.TagHeader = func() bool { return false }
	}
	if options.TargetBurstCapacity == nil {
		options.TargetBurstCapacity = func() float64 { return defaultBurstCapacity }
	}
	if options.MaxTimeout == nil {
		options.MaxTimeout = func() time.Duration { return defaultMaxTimeout }
	}
	if options.Budget == nil {
		options.Budget = flow.NewBudget(defaultMemory, largestRequest)
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.StopTimeout == 0 {
		options.StopTimeout = 30 * time.Second
	}
	if options.Members == nil {
		options.Members = membership.Alone()
	}
	set := options.Members.Current()
	var seed maphash.Seed
	if set.Self() != "" {
		seed = maphash.MakeSeed()
	}
	peers := &replicas{members: options.Members, holders: ownership.NewHolders(set), forward: options.Forward, standing: options.Standing, upToDate: options.UpToDate}
	shares := fairness.New(options.Budget.Limit())
	pools := pool.New(pool.Options{
		Activate: options.Activate, Drained: options.Drained, TargetBurstCapacity: options.TargetBurstCapacity, Clock: options.Clock,
		Fairness: shares, Owners: peers, Seed: seed, Register: options.Register,
	})
	table := routetable.New[*pool.Pool]()
	g := &Gateway{
		routes:  &routes{table: table, pools: pools, replicas: peers, assigned: map[routing.Key]*assigned{}, changes: map[routing.Key]*change{}},
		drains:  &drains{pools: pools, replicas: peers},
		options: options, pools: pools, replicas: peers, fairness: shares,
	}
	g.chain = &chain{options: &g.options, table: table, pools: pools, transports: proxy.New(), recorder: newRecorder(&options), altSvc: altSvc(options.HTTPSPort)}
	if options.Standing != nil {
		options.Standing.Subscribe(g.lapsed)
	}
	options.Members.Subscribe(g.membersChanged)
	// Changes since Current.
	g.membersChanged(options.Members.Current())
	return g
}

// membersChanged applies a new membership: waiting requests are forwarded to the new owners of their Revisions.
func (g *Gateway) membersChanged(set *membership.Set) {
	g.replicas.holders.Set(set)
	g.pools.OwnersChanged()
}

// lapsed stops what other replicas may soon consider ended: requests to Revisions with containerConcurrency that this replica owns.
func (g *Gateway) lapsed() {
	g.chain.recorder.interruptions.Inc()
	g.pools.Suspend()
	g.chain.limited.interrupt()
}

// KeepStanding confirms Options.Standing by the other replicas while the host does not answer, until ctx is canceled.
func (g *Gateway) KeepStanding(ctx context.Context) {
	if g.options.Standing != nil {
		g.options.Standing.Run(ctx, g.replicas.confirm)
	}
}

// AnnounceStopped announces to the other replicas that this one sends no request any more, once it has left the membership. A request that is still
// in flight prevents it: the others then wait until this replica must have stopped.
func (g *Gateway) AnnounceStopped(ctx context.Context) error {
	if g.pools.LimitedInFlight() {
		return nil
	}
	return g.replicas.announceStopped(ctx)
}

// Retire closes each connection after its next response, so that clients use other replicas before Serve returns.
func (g *Gateway) Retire() { g.chain.retired.Store(true) }

// SetRevision adds or changes a Revision.
func (g *Gateway) SetRevision(revision *routing.Revision) { g.pools.SetRevision(revision) }

// DeleteRevision deletes a Revision. Its requests wait for a new Revision of the same name while a route refers to it, and are
// rejected with 503 otherwise.
func (g *Gateway) DeleteRevision(key routing.Key) { g.pools.DeleteRevision(key) }

// SetInstances sets the backends of a Revision.
func (g *Gateway) SetInstances(key routing.Key, instances []workload.Instance) {
	g.pools.SetBackends(key, instances)
}

// Sample returns the usage of a Revision since the previous call, see pool.Pools.
func (g *Gateway) Sample(key routing.Key, now time.Time) (concurrency, rps float64, waiting int, ok bool) {
	return g.pools.Sample(key, now)
}

// Report returns the usage of Revisions with requests since the previous call, see pool.Pools.
func (g *Gateway) Report(now time.Time) []pool.Usage { return g.pools.Report(now) }

// ColdStarts returns the cold starts that have begun or changed since the previous call, see pool.Pools.
func (g *Gateway) ColdStarts() []pool.ColdStart { return g.pools.ColdStarts() }
