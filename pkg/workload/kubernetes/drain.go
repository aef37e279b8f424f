package kubernetes

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

// deletionDelay is the maximum delay between the kubelet's and this server's observation of a Pod's deletion.
const deletionDelay = 500 * time.Millisecond

// AwaitDrained returns once the gateways have no requests in flight at any backend of a Revision that is draining now, or
// with an error when ctx is canceled. It covers all of them because the Pods of a Deployment have the same hook, which does
// not identify the Pod.
func (rt *Runtime) AwaitDrained(ctx context.Context, key types.NamespacedName) error {
	if !backoff.Sleep(ctx, rt.clock, deletionDelay) {
		return ctx.Err()
	}
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range r.pods.byUID {
		if p.draining() {
			name, idle := p.Name, p.idle
			group.Go(func() error { return rt.awaitBackend(ctx, key, name, idle) })
		}
	}
	r.Unlock()
	return group.Wait()
}

// awaitBackend returns once the gateways have no requests in flight at a backend.
func (rt *Runtime) awaitBackend(ctx context.Context, key types.NamespacedName, backend string, idle <-chan struct{}) error {
	if drain := rt.options.Drain; drain != nil {
		return drain(ctx, key, backend)
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// DrainHandler serves the preStop hooks of Pods, GET /drain/<namespace>/<revision>: it responds with 204 once AwaitDrained
// returns. After an error, the hook ends too, and the Pod is stopped.
func (rt *Runtime) DrainHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+podspec.DrainPath+"{namespace}/{revision}", func(w http.ResponseWriter, r *http.Request) {
		key := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("revision")}
		if err := rt.AwaitDrained(r.Context(), key); err != nil {
			http.Error(w, "failed to wait until revision "+strconv.Quote(key.String())+" has drained", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}
