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
	// settleTime is how long an instance that is not known may still become so.
	settleTime = 300 * time.Millisecond
)

// InFlight returns the number of requests that this gateway has at an instance.
func (g *Gateway) InFlight(revision routing.Key, instance string) int {
	p, ok := g.pools.Get(revision)
	if !ok {
		return 0
	}
	requests, _ := p.InFlight()
	return requests[instance]
}

// AwaitDrained returns once this gateway sends no more requests to an instance, and has none but long-lived ones there: it
// drains, or is gone. An instance that is not known, and does not become so within a moment, has none. The error is ctx's.
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
		// Until it is known, it is waited for no longer than a moment.
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

// AwaitDrainedEverywhere returns once no replica's gateway has ordinary requests at an instance, or sends more there, see
// AwaitDrained. Replicas that do not answer count until they are members no longer. The error is ctx's.
func (g *Gateway) AwaitDrainedEverywhere(ctx context.Context, revision routing.Key, instance string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var asking sync.WaitGroup
	for _, other := range g.holders.All() {
		asking.Go(func() { g.awaitDrainedAt(ctx, other, revision, instance) })
	}
	err := g.AwaitDrained(ctx, revision, instance)
	if err != nil {
		cancel()
	}
	asking.Wait()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// awaitDrainedAt returns when another replica says so, is gone, or ctx ends.
func (g *Gateway) awaitDrainedAt(ctx context.Context, member membership.Member, revision routing.Key, instance string) {
	query := url.Values{"namespace": {revision.Namespace}, "revision": {revision.Name}, "instance": {instance}}
	gone := func(error) bool { return g.holders.Forget(member.Name) }
	_ = peerCall(drainedPath, query, nil).Retry(ctx, g.options.Forward, member, askRetry, gone)
}

// serveDrained answers another replica once this gateway is done with an instance.
func (g *Gateway) serveDrained(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	key := routing.Key{Namespace: query.Get("namespace"), Name: query.Get("revision")}
	if err := g.AwaitDrained(r.Context(), key, query.Get("instance")); err != nil {
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// DrainHandler serves GET /drain/<namespace>/<revision>/<instance>: the answer comes once no replica's gateway has
// ordinary requests at the instance, or sends more there. It is for the preStop hooks of pods, and changes nothing.
func (g *Gateway) DrainHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /drain/{namespace}/{revision}/{instance}", func(w http.ResponseWriter, r *http.Request) {
		key := routing.Key{Namespace: r.PathValue("namespace"), Name: r.PathValue("revision")}
		if err := g.AwaitDrainedEverywhere(r.Context(), key, r.PathValue("instance")); err != nil {
			http.Error(w, err.Error(), http.StatusGatewayTimeout)
			return
		}
		w.WriteHeader(http.StatusOK)
	})
	return mux
}
