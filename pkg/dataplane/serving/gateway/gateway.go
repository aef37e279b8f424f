// Package gateway routes HTTP requests to Revision backends by Host header and traffic split, queueing them until a backend has
// capacity. chain.go lists the steps of a request; the packages beside this one implement most of them.
package gateway

import (
	"context"
	"hash/maphash"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
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
	// defaultMemory is the budget without Options.Budget, largestRequest more than any request holds, in bytes.
	defaultMemory, largestRequest = 256 << 20, 1 << 20
	// defaultBurstCapacity is the target burst capacity without Options.TargetBurstCapacity.
	defaultBurstCapacity = 211
)

// Options configure a Gateway.
type Options struct {
	// Activate is called when a request begins to wait at a revision without ready instance, by the goroutine of
	// the request, which counts as waiting by then: it must not block. Nil does nothing.
	Activate func(revision routing.Key)
	// Drained is called once when a draining instance has none but long-lived requests left. It must not block. Nil does nothing.
	Drained func(revision routing.Key, instance string)
	// TagHeader reports whether the Knative-Serving-Tag header selects a tag. Nil disables it.
	TagHeader func() bool
	// TargetBurstCapacity returns the target burst capacity of revisions that set none: 0 is none, -1 is any. Nil
	// stands for the default of config-autoscaler.
	TargetBurstCapacity func() float64
	// MaxTimeout returns how long a response may stall whose revision sets no idle timeout. Nil stands for the default
	// of max-revision-timeout-seconds.
	MaxTimeout func() time.Duration
	// AccessLog gets a line of JSON for each request, or is nil. See Serve.
	AccessLog io.Writer
	// Register registers the metrics, such as legacyregistry.MustRegister. Nil disables them.
	Register func(...metrics.Registerable)
	// Clock is the real one where it is nil.
	Clock clock.PassiveClock
	// Budget bounds the bytes that requests hold; nil stands for one of their own.
	Budget *flow.Budget
	// StopTimeout is how long requests in flight may go on when Serve is to end; 0 means 30 s.
	StopTimeout time.Duration
	// StandardOnly turns the fast path off: net/http forwards all requests.
	StandardOnly bool
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

// Gateway routes and forwards requests. Changes take effect for the requests that come from then on; requests in flight end as they
// began. Its methods may be called concurrently.
type Gateway struct {
	options    Options
	table      *routetable.Table[*pool.Pool]
	pools      *pool.Pools
	fairness   *fairness.Fairness
	transports *proxy.Transports
	holders    *ownership.Holders

	instruments  *instruments
	unknownHosts metrics.CounterMetric
	log          *accessLog
	// retired is true once connections end with the next response, adjusting while a call of Serve runs fairness.
	retired, adjusting atomic.Bool

	// mu guards the fields below.
	mu     sync.Mutex
	routes map[routing.Key]*assigned
	// changes are the changes of routes that other replicas wait for.
	changes map[routing.Key]*change
}

// assigned is a route of the table, with the pools that it refers to.
type assigned struct {
	pools []*pool.Pool
	// form identifies the content of the route; everywhere is true if the other replicas serve it in that form. askNoMore ends
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
		options: options, table: routetable.New[*pool.Pool](), fairness: fairness.New(options.Budget.Limit()), transports: proxy.New(),
		holders: ownership.NewHolders(set), instruments: newInstruments(options.Register),
		routes: map[routing.Key]*assigned{}, changes: map[routing.Key]*change{},
	}
	var seed maphash.Seed
	if set.Self() != "" {
		seed = maphash.MakeSeed()
	}
	g.pools = pool.New(pool.Options{
		Activate: options.Activate, Drained: options.Drained, TargetBurstCapacity: options.TargetBurstCapacity, Clock: options.Clock,
		Fairness: g.fairness, Owners: owners{g}, Seed: seed, Register: options.Register,
	})
	g.unknownHosts = g.instruments.unknownHosts.WithLabelValues()
	if options.AccessLog != nil {
		dropped := g.instruments.logLinesDropped.WithLabelValues()
		g.log = &accessLog{to: options.AccessLog, dropped: dropped.Inc}
	}
	options.Members.Subscribe(g.membersChanged)
	// Changes since Current.
	g.membersChanged(options.Members.Current())
	return g
}

// Retire closes each connection after its next response, so that clients use other replicas before Serve returns.
func (g *Gateway) Retire() { g.retired.Store(true) }

// SetRoute sets the hosts of a route with their traffic splits. A host of another route becomes this one's (serving 8-3). Requests
// wait for Revisions that are unknown yet.
func (g *Gateway) SetRoute(route *routing.Route) {
	form := formOf(route)
	g.mu.Lock()
	defer g.mu.Unlock()
	next := &assigned{form: form}
	g.table.Set(route, func(key routing.Key) *pool.Pool {
		p := g.pools.Retain(key)
		next.pools = append(next.pools, p)
		return p
	})
	g.assign(route.Key, next)
}

// DeleteRoute removes a route with its hosts.
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
		g.pools.Release(p)
	}
	if before.askNoMore != nil {
		before.askNoMore()
	}
	g.rerouted(key)
}

// SetRevision adds or changes a Revision.
func (g *Gateway) SetRevision(revision *routing.Revision) { g.pools.SetRevision(revision) }

// DeleteRevision makes a Revision unknown. Requests wait for another one of its name while a route refers to it, and are rejected
// with 503 otherwise.
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
