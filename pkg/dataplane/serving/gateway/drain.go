package gateway

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

const (
	// settleTime is the time that AwaitDrained waits for an unknown backend to become known.
	settleTime = 300 * time.Millisecond
)

// InFlight returns the number of this gateway's in-flight requests to a backend.
func (g *Gateway) InFlight(revision routing.Key, instance string) int {
	p, ok := g.pools.Get(revision)
	if !ok {
		return 0
	}
	requests, _ := p.InFlight()
	return requests[instance]
}

// AwaitDrained returns once a backend is draining or removed, and this gateway has only long-lived requests in flight there. It
// returns nil for a backend that does not become known within settleTime. The error is the cause of ctx.
func (g *Gateway) AwaitDrained(ctx context.Context, revision routing.Key, instance string) error {
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	p := g.pools.Retain(revision)
	defer g.pools.Release(p)
	known := false
	for {
		drained, here, changed := p.Drained(instance)
		known = known || here
		if drained && known {
			return nil
		}
		// settleTime limits the wait only for an unknown backend.
		timer := settled.C
		if known {
			timer = nil
		}
		select {
		case <-changed:
		case <-timer:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AwaitDrainedByAll returns once AwaitDrained has returned on all replicas. It waits for replicas that do not respond until
// they leave the membership. The error is the cause of ctx.
func (g *Gateway) AwaitDrainedByAll(ctx context.Context, revision routing.Key, instance string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var queries sync.WaitGroup
	for _, other := range g.holders.All() {
		queries.Go(func() { g.awaitDrainedAt(ctx, other, revision, instance) })
	}
	err := g.AwaitDrained(ctx, revision, instance)
	if err != nil {
		cancel()
	}
	queries.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// awaitDrainedAt returns when another replica reports the backend as drained, leaves the membership, or ctx is canceled.
func (g *Gateway) awaitDrainedAt(ctx context.Context, member membership.Member, revision routing.Key, instance string) {
	query := url.Values{"namespace": {revision.Namespace}, "revision": {revision.Name}, "instance": {instance}}
	gone := func(error) bool { return g.holders.Forget(member.Name) }
	_ = peerCall(drainedPath, query, nil).Retry(ctx, g.options.Forward, member, queryInterval, gone)
}

// serveDrained responds to another replica once AwaitDrained returns.
func (g *Gateway) serveDrained(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	key := routing.Key{Namespace: query.Get("namespace"), Name: query.Get("revision")}
	if err := g.AwaitDrained(r.Context(), key, query.Get("instance")); err != nil {
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// DrainHandler serves GET /drain/<namespace>/<revision>/<instance>, which responds once AwaitDrainedByAll returns. The preStop
// hooks of Pods call it. It changes nothing.
func (g *Gateway) DrainHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /drain/{namespace}/{revision}/{instance}", func(w http.ResponseWriter, r *http.Request) {
		key := routing.Key{Namespace: r.PathValue("namespace"), Name: r.PathValue("revision")}
		if err := g.AwaitDrainedByAll(r.Context(), key, r.PathValue("instance")); err != nil {
			http.Error(w, err.Error(), http.StatusGatewayTimeout)
			return
		}
		w.WriteHeader(http.StatusOK)
	})
	return mux
}
