package gateway

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// settleTime is the time that awaitDrained waits for an unknown backend to become known.
const settleTime = 300 * time.Millisecond

// drains waits until backends have drained, at this replica and at the others.
type drains struct {
	pools    *pool.Pools
	replicas *replicas
}

// awaitDrained returns once a backend is draining or removed, and this gateway has only long-lived requests in flight there. It
// returns nil for a backend that does not become known within settleTime. The error is the cause of ctx.
func (d *drains) awaitDrained(ctx context.Context, revision routing.Key, instance string) error {
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	p := d.pools.Retain(revision)
	defer d.pools.Release(p)
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

// AwaitDrainedByAll returns once awaitDrained has returned on all replicas. It waits for replicas that do not respond until
// they leave the membership. The error is the cause of ctx.
func (d *drains) AwaitDrainedByAll(ctx context.Context, revision routing.Key, instance string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var queries sync.WaitGroup
	for _, other := range d.replicas.holders.All() {
		queries.Go(func() { d.awaitDrainedAt(ctx, other, revision, instance) })
	}
	err := d.awaitDrained(ctx, revision, instance)
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
func (d *drains) awaitDrainedAt(ctx context.Context, member membership.Member, revision routing.Key, instance string) {
	query := url.Values{"namespace": {revision.Namespace}, "revision": {revision.Name}, "instance": {instance}}
	gone := func(error) bool { return !d.replicas.holders.Member(member.Name) }
	_ = d.replicas.await(ctx, member, drainedPath, query, gone)
}

// serveDrained responds to another replica once awaitDrained returns.
func (d *drains) serveDrained(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	key := routing.Key{Namespace: query.Get("namespace"), Name: query.Get("revision")}
	if err := d.awaitDrained(r.Context(), key, query.Get("instance")); err != nil {
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
		return
	}
	w.WriteHeader(http.StatusOK)
}
