package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

const (
	routedPath = "/routed"
	// routedTimeout is the time that a replica has to serve a route as this one does. A slower replica is logged and no
	// longer waited for: it must not prevent all Routes from becoming ready.
	routedTimeout = 10 * time.Second
)

// formOf returns a hash of a route's content, which is equal on all replicas.
func formOf(route *routing.Route) string {
	hash := sha256.New()
	json.NewEncoder(hash).Encode(route) //nolint:errcheck,errchkjson // neither the hash nor the types of a route return errors
	return hex.EncodeToString(hash.Sum(nil))
}

// ServedByAll reports whether the gateways of all replicas serve a route in the form of the last SetRoute, so that requests
// may reach any of them. If not, it queries them and calls then from another goroutine once the result may have changed. It
// returns true for a route that is unknown to this gateway.
func (g *Gateway) ServedByAll(key routing.Key, then func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	route := g.routes[key]
	if route == nil || route.servedByAll {
		return true
	}
	others := g.holders.Members()
	if len(others) == 0 {
		return true
	}
	if route.stopQueries == nil {
		ctx, cancel := context.WithTimeout(context.Background(), routedTimeout)
		route.stopQueries = cancel
		go func() {
			defer cancel()
			g.awaitRoutedAt(ctx, others, key, route.form)
			g.mu.Lock()
			route.servedByAll = true
			g.mu.Unlock()
			then()
		}()
	}
	return false
}

// awaitRoutedAt returns when each of the other replicas serves a route in a form or is unreachable, or when ctx is canceled.
func (g *Gateway) awaitRoutedAt(ctx context.Context, others []membership.Member, key routing.Key, form string) {
	query := url.Values{"namespace": {key.Namespace}, "route": {key.Name}, "form": {form}}
	var queries sync.WaitGroup
	for _, other := range others {
		queries.Go(func() {
			if err := g.awaitRouted(ctx, other, query); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				klog.FromContext(ctx).Error(err, "Failed to confirm that a replica serves a Route; continuing without it", "replica", other.Name, "route", key, "waited", routedTimeout)
			}
		})
	}
	queries.Wait()
}

// awaitRouted queries another replica until it confirms that it serves a route, leaves the membership or refuses the
// connection: then it receives no requests, and it knows all routes before it accepts requests again.
func (g *Gateway) awaitRouted(ctx context.Context, other membership.Member, query url.Values) error {
	return peerCall(routedPath, query, nil).Retry(ctx, g.options.Forward, other, queryInterval, func(err error) bool {
		return errors.Is(err, syscall.ECONNREFUSED) || !slices.Contains(g.holders.Members(), other)
	})
}

// change is the next change of a route, for which queries of other replicas wait.
type change struct {
	happened chan struct{}
	waiting  int
}

// serveRouted responds to another replica once this gateway serves a route in a form.
func (g *Gateway) serveRouted(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	key := routing.Key{Namespace: query.Get("namespace"), Name: query.Get("route")}
	for {
		next := g.routedAs(key, query.Get("form"))
		if next == nil {
			w.WriteHeader(http.StatusOK)
			return
		}
		select {
		case <-next.happened:
		case <-r.Context().Done():
			g.stopWaiting(key, next)
			return
		}
	}
}

// routedAs returns nil if this gateway serves a route in a form, and otherwise the route's next change. The caller must wait for
// it or call stopWaiting.
func (g *Gateway) routedAs(key routing.Key, form string) *change {
	g.mu.Lock()
	defer g.mu.Unlock()
	if route := g.routes[key]; route != nil && route.form == form {
		return nil
	}
	next := g.changes[key]
	if next == nil {
		next = &change{happened: make(chan struct{})}
		g.changes[key] = next
	}
	next.waiting++
	return next
}

// stopWaiting stops a wait for a change, and removes the change after the last one.
func (g *Gateway) stopWaiting(key routing.Key, next *change) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if next.waiting--; next.waiting == 0 && g.changes[key] == next {
		delete(g.changes, key)
	}
}

// routeChanged ends the waits for a change of a route. g.mu must be held.
func (g *Gateway) routeChanged(key routing.Key) {
	if next := g.changes[key]; next != nil {
		delete(g.changes, key)
		close(next.happened)
	}
}
