package kubernetes

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/knative-apiserver/knative-apiserver/pkg/runtime"
)

const (
	// settle is how long a Pod's deletion may take to be seen here after the kubelet has.
	settle = 500 * time.Millisecond
	// sleepSeconds is how long a container is held that cannot ask when its Pod has drained: as long as nearly all
	// requests take, and as a Pod may take to go away.
	sleepSeconds = 10
	drainPath    = "/drain/"
)

// hold keeps a container that is to end from being told so while its Pod has requests left, for as long as a request
// may take: the kubelet asks DrainHandler. Where the namespace admits no hooks that leave the Pod, or there is nobody to
// ask, the container sleeps for a while.
func hold(c *corev1.Container, key runtime.Key, seconds int64, p *plan) {
	hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: min(seconds, sleepSeconds)}}
	if p.drainHost != "" && !p.images.local {
		hook = &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
			Host: p.drainHost, Port: intstr.FromInt32(p.drainPort), Path: drainPath + key.Namespace + "/" + key.Name, Scheme: corev1.URISchemeHTTP,
		}}
	}
	c.Lifecycle = &corev1.Lifecycle{PreStop: hook}
}

// Held returns once no gateway has a request left at any instance of a revision that is draining now, or ctx ends.
// The kubelet cannot say which of them it asks for: a hook is the same for all Pods of a Deployment.
func (rt *Runtime) Held(ctx context.Context, key runtime.Key) error {
	if !rt.sleep(ctx, settle) {
		return ctx.Err()
	}
	r := rt.locked(key)
	if r == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range r.pods {
		if p.draining() {
			name, idle := p.Name, p.idle
			group.Go(func() error { return rt.awaitDrained(ctx, key, name, idle) })
		}
	}
	r.mu.Unlock()
	return group.Wait()
}

// awaitDrained returns once no gateway has a request left at an instance.
func (rt *Runtime) awaitDrained(ctx context.Context, key runtime.Key, instance string, idle <-chan struct{}) error {
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
	mux.HandleFunc("GET "+drainPath+"{namespace}/{revision}", func(w http.ResponseWriter, r *http.Request) {
		key := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("revision")}
		if err := rt.Held(r.Context(), key); err != nil {
			http.Error(w, "waiting for revision "+strconv.Quote(key.String())+" to drain failed", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}
