package app

import (
	"context"
	goruntime "runtime"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// maxTurn is the time after which a call that is still served no longer counts: it waits for something else than a processor, such as a
	// webhook that makes calls itself, or a client that reads slowly.
	maxTurn = time.Second
	// callsShareFor is the time for which a namespace shares after its last call.
	callsShareFor = time.Second
	// pressedShare is the share of the time for which a namespace whose calls wait is served, as a divisor: one third. It uses the same
	// processors as a quiet namespace; half of the time doubles the latter's 95th percentile (TestFloodOfCalls).
	pressedShare = 3
)

// calls decides when the calls of the API are served. While calls of several namespaces arrive, each namespace has one at a time for
// two processors. A namespace whose calls wait, while another's do not, has one for pressedShare of the time in all
// replicas together, since every replica does the work of a write: it pauses after each in each replica. The replicas do not ask each
// other.
type calls struct {
	queue    *flow.Queue
	replicas int
	waited   metrics.ObserverMetric
}

// newCalls returns the reads and the writes of a server with a number of replicas.
func newCalls(register func(...metrics.Registerable), replicas int) (reads, writes *calls) {
	waited := metrics.NewHistogramVec(&metrics.HistogramOpts{
		Namespace: "knative", Subsystem: "api", Name: "call_wait_duration_seconds", StabilityLevel: metrics.ALPHA,
		Help:    "Time from the arrival of an API call of a namespace until it is served, in seconds, by kind: read or write.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"kind"})
	register(waited)
	return limitedCalls(waited.WithLabelValues("read"), replicas), limitedCalls(waited.WithLabelValues("write"), replicas)
}

// limitedCalls returns the calls of one kind.
func limitedCalls(waited metrics.ObserverMetric, replicas int) *calls {
	processors := goruntime.GOMAXPROCS(0)
	perNamespace := 2 * processors
	return &calls{replicas: replicas, waited: waited, queue: flow.NewQueue(flow.QueueOptions{
		// A namespace that pauses counts, too. Priority and fairness bounds the calls that wait.
		Concurrency: perNamespace * replicas, PerTenant: perNamespace, PerSharing: max(1, processors/2), ActiveFor: callsShareFor,
	})}
}

// Start is the method of apiserver.Calls.
func (c *calls) Start(ctx context.Context, namespace string, bytes int64) (func(), error) {
	cost, arrived := flow.CostOf(1, bytes), time.Now()
	c.queue.Observe(namespace, cost)
	if err := c.queue.Acquire(ctx, namespace, cost); err != nil {
		return nil, err
	}
	started := time.Now()
	c.waited.Observe(started.Sub(arrived).Seconds())
	release := func() { c.queue.Release(namespace) }
	timeout := time.AfterFunc(maxTurn, release)
	return func() {
		if !timeout.Stop() {
			return
		}
		if !c.queue.Presses(namespace) {
			release()
			return
		}
		pause := time.Since(started) * time.Duration(pressedShare*c.replicas-1)
		time.AfterFunc(min(pause, maxTurn), release)
	}, nil
}
