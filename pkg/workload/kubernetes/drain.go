package kubernetes

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

// settle is how long a Pod's deletion may take to be seen here after the kubelet has.
const settle = 500 * time.Millisecond

// Held returns once no gateway has a request left at any instance of a revision that is draining now, or ctx ends.
// The kubelet cannot say which of them it asks for: a hook is the same for all Pods of a Deployment.
func (rt *Runtime) Held(ctx context.Context, key workload.Key) error {
	if !backoff.Sleep(ctx, rt.clock, settle) {
		return ctx.Err()
	}
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range r.pods {
		if p.draining() {
			name, idle := p.Name, p.idle
			group.Go(func() error { return rt.awaitDrained(ctx, key, name, idle) })
		}
	}
	r.Unlock()
	return group.Wait()
}

// awaitDrained returns once no gateway has a request left at an instance.
func (rt *Runtime) awaitDrained(ctx context.Context, key workload.Key, instance string, idle <-chan struct{}) error {
	if drain := rt.options.Drain; drain != nil {
		return drain(ctx, key, instance)
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// DrainHandler answers the preStop hooks of Pods, GET /drain/<namespace>/<revision>, with 204 once Held returns. An
// error ends the hook as well, and with it the Pod.
func (rt *Runtime) DrainHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+podspec.DrainPath+"{namespace}/{revision}", func(w http.ResponseWriter, r *http.Request) {
		key := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("revision")}
		if err := rt.Held(r.Context(), key); err != nil {
			http.Error(w, "waiting for revision "+strconv.Quote(key.String())+" to drain failed", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}
