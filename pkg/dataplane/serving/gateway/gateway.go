// Package gateway takes HTTP requests to the instances of revisions: by the host name they ask for, in the
// proportions that Routes say, as soon as an instance may take them.
package gateway

import (
	"context"
	"hash/maphash"
	"io"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// Options are what a Gateway needs.
type Options struct {
	// Activate is called when a request begins to wait at a revision without ready instance, by the goroutine of
	// the request, which counts as waiting by then: it must not block. Nil does nothing.
	Activate func(revision routing.Key)
	// Drained is called once when a draining instance has none but long-lived requests left. It must not block. Nil does nothing.
	Drained func(revision routing.Key, instance string)
	// TagHeader tells whether the Knative-Serving-Tag header picks a tag. Nil says no.
	TagHeader func() bool
	// TargetBurstCapacity returns the target burst capacity of revisions that set none: 0 is none, -1 is any. Nil
	// stands for the default of config-autoscaler.
	TargetBurstCapacity func() float64
	// MaxTimeout returns how long a response may stall whose revision sets no idle timeout. Nil stands for the default
	// of max-revision-timeout-seconds.
	MaxTimeout func() time.Duration
	// AccessLog gets a line of JSON for each request, or is nil. See Serve.
	AccessLog io.Writer
	// Register registers the metrics, such as legacyregistry.MustRegister. Nil has nothing measured.
	Register func(...metrics.Registerable)
	// Clock is the real one where it is nil.
	Clock clock.PassiveClock
	// Budget bounds the bytes that requests hold; nil stands for one of their own.
	Budget *flow.Budget
	// StopTimeout is how long requests in flight may go on when Serve is to end; 0 means 30 s.
	StopTimeout time.Duration
	// Listeners is how many listeners are served, which share the connections that there may be; 0 means one.
	Listeners int
	// Members are the replicas, of which one has the requests to a revision with containerConcurrency (serving 8-7), by
	// the key "revision/<namespace>/<name>": so their number is bounded whichever gateway they come to. Nil is no
	// others. The set has to be known before requests come.
	Members *membership.View
	// Forward takes requests to other replicas' PeerHandler: host of the URL is Member.Address, scheme https. It
	// needs HTTP/2. Nil has none reached.
	Forward http.RoundTripper
}

// Gateway routes and forwards requests. What it is told takes effect for the requests that come from then on, those
// in flight end where they began. Its methods may be called concurrently.
type Gateway struct {
	options      Options
	instruments  *instruments
	unknownHosts metrics.CounterMetric
	log          *accessLog
	proxy        *httputil.ReverseProxy
	table        *routetable.Table[*pool]
	fairness     *fairness
	reports      reports
	peers        peerSet
	// seed makes the order of instances differ between replicas. It is zero where there is only this one.
	seed maphash.Seed
	// base is what questions to other replicas derive their contexts from: no request asks for itself alone.
	base context.Context
	// retired tells that connections end with the next answer.
	retired atomic.Bool
	// tending tells that fairness is run by a call of Serve.
	tending atomic.Bool

	// mu guards the fields below. Requests take it only where they come from other replicas.
	mu     sync.Mutex
	routes map[routing.Key]*assigned
	pools  map[routing.Key]*pool
	// changes are those of routes that other replicas wait for.
	changes map[routing.Key]*change
}

// assigned is a route of the table, with the pools that it refers to.
type assigned struct {
	pools []*pool
	// form identifies what it was given as, everywhere tells that the other replicas serve it in that form. askNoMore ends
	// the questions to them, if there are any.
	form       string
	everywhere bool
	askNoMore  context.CancelFunc
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
	g := &Gateway{
		options:     options,
		base:        context.Background(),
		fairness:    newFairness(options.Budget.Limit()),
		reports:     reports{pools: map[*pool]struct{}{}},
		peers:       peerSet{set: set, left: map[string]membership.Member{}},
		table:       routetable.New[*pool](),
		instruments: newInstruments(options.Register),
		routes:      map[routing.Key]*assigned{},
		pools:       map[routing.Key]*pool{},
		changes:     map[routing.Key]*change{},
	}
	g.unknownHosts = g.instruments.unknownHosts.WithLabelValues()
	if options.AccessLog != nil {
		dropped := g.instruments.logLinesDropped.WithLabelValues()
		g.log = &accessLog{to: options.AccessLog, dropped: dropped.Inc}
	}
	if set.Self() != "" {
		g.seed = maphash.MakeSeed()
	}
	g.proxy = newProxy(relays{members: options.Members, forward: options.Forward})
	options.Members.Subscribe(g.follow)
	// What changed meanwhile.
	g.follow(options.Members.Current())
	return g
}

// Retire has each connection end with its next answer, so that clients go to other replicas before Serve ends.
func (g *Gateway) Retire() { g.retired.Store(true) }

// SetRoute has the requests to a route's hosts distributed as it says. A host that another route had before is
// this one's from then on; nobody else has made host names unique (serving 8-3). Revisions may be unknown yet:
// requests wait for them.
func (g *Gateway) SetRoute(route *routing.Route) {
	form := formOf(route)
	g.mu.Lock()
	defer g.mu.Unlock()
	next := &assigned{form: form}
	g.table.Set(route, func(key routing.Key) *pool {
		p := g.pool(key)
		p.routes++
		next.pools = append(next.pools, p)
		return p
	})
	g.assign(route.Key, next)
}

// DeleteRoute forgets a route: its hosts are unknown then.
func (g *Gateway) DeleteRoute(key routing.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.table.Delete(key)
	g.assign(key, nil)
}

// assign replaces the assigned pools of a route, after the change of the table. g.mu is held.
func (g *Gateway) assign(key routing.Key, next *assigned) {
	before := g.routes[key]
	if before == nil {
		before = &assigned{}
	}
	delete(g.routes, key)
	if next != nil {
		g.routes[key] = next
	}
	for _, p := range before.pools {
		p.routes--
		g.drop(p)
	}
	if before.askNoMore != nil {
		before.askNoMore()
	}
	g.rerouted(key)
}

// SetRevision makes a revision known, or tells what it wants now.
func (g *Gateway) SetRevision(revision *routing.Revision) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pool(revision.Key).setSpec(revision)
}

// DeleteRevision forgets a revision. Requests wait for another of its name while a route refers to it; where none
// does, those that wait get 503.
func (g *Gateway) DeleteRevision(key routing.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pools[key]
	if p == nil {
		return
	}
	p.setSpec(nil)
	g.drop(p)
}

// SetInstances says which instances of a revision there are.
func (g *Gateway) SetInstances(key routing.Key, instances []workload.Instance) {
	g.setInstances(key, instances)()
}

func (g *Gateway) setInstances(key routing.Key, instances []workload.Instance) (notify func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pools[key]
	if p == nil {
		if len(instances) == 0 {
			return func() {}
		}
		p = g.pool(key)
	}
	notify = p.setInstances(instances)
	g.drop(p)
	return notify
}

// Sample returns what there was at a revision since the previous call: the average number of requests in flight,
// those that waited included, and the requests that came per second; besides the number of those that wait now.
// It is false where the gateway does not know the revision.
func (g *Gateway) Sample(key routing.Key, now time.Time) (concurrency, rps float64, waiting int, ok bool) {
	g.mu.Lock()
	p := g.pools[key]
	g.mu.Unlock()
	if p == nil {
		return 0, 0, 0, false
	}
	concurrency, rps, waiting = p.sample(now)
	return concurrency, rps, waiting, true
}

// pool returns that of a revision, and makes it if need be. g.mu is held.
func (g *Gateway) pool(key routing.Key) *pool {
	p := g.pools[key]
	if p == nil {
		p = newPool(key, g)
		g.pools[key] = p
	}
	return p
}

// emptied drops a pool whose last instance that had gone has no requests any more.
func (g *Gateway) emptied(p *pool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drop(p)
}

// drop forgets a pool that nobody knows anything of any more. g.mu is held.
func (g *Gateway) drop(p *pool) {
	if g.pools[p.key] != p || p.routes > 0 || p.spec.Load() != nil || p.instances() > 0 {
		return
	}
	delete(g.pools, p.key)
	p.close()
}
