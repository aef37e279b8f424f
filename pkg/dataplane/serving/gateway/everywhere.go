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
	// routedPatience is how long a replica may take to serve a route as this one does. One that takes longer is told of in
	// the log, and not waited for: it must not keep all Routes from being ready.
	routedPatience = 10 * time.Second
)

// formOf identifies what a route was given as: it is the same in each replica.
func formOf(route *routing.Route) string {
	hash := sha256.New()
	json.NewEncoder(hash).Encode(route) //nolint:errcheck,errchkjson // neither the hash nor what routes consist of fails
	return hex.EncodeToString(hash.Sum(nil))
}

// ServedByAll tells whether the gateways of all replicas serve a route in the form that this one was given last, so
// that it does not matter to which of them a request comes. Where it is not, it begins to ask them, and has then called by
// another goroutine when the answer may be a different one. A route that is unknown here is served everywhere.
func (g *Gateway) ServedByAll(key routing.Key, then func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	route := g.routes[key]
	if route == nil || route.everywhere {
		return true
	}
	others := g.holders.Members()
	if len(others) == 0 {
		return true
	}
	if route.askNoMore == nil {
		ctx, cancel := context.WithTimeout(context.Background(), routedPatience)
		route.askNoMore = cancel
		go func() {
			defer cancel()
			g.awaitRoutedAt(ctx, others, key, route.form)
			g.mu.Lock()
			route.everywhere = true
			g.mu.Unlock()
			then()
		}()
	}
	return false
}

// awaitRoutedAt returns when other replicas serve a route in a form, or are gone, or took too long.
func (g *Gateway) awaitRoutedAt(ctx context.Context, others []membership.Member, key routing.Key, form string) {
	query := url.Values{"namespace": {key.Namespace}, "route": {key.Name}, "form": {form}}
	var asking sync.WaitGroup
	for _, other := range others {
		asking.Go(func() {
			if err := g.awaitRouted(ctx, other, query); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				klog.FromContext(ctx).Error(err, "A replica does not serve a Route as this one does", "replica", other.Name, "route", key, "waited", routedPatience)
			}
		})
	}
	asking.Wait()
}

// awaitRouted asks another replica until it says that it serves a route, or is gone. If nothing listens there, no request gets
// there, and it knows all routes before it takes some again.
func (g *Gateway) awaitRouted(ctx context.Context, other membership.Member, query url.Values) error {
	return peerCall(routedPath, query, nil).Retry(ctx, g.options.Forward, other, askRetry, func(err error) bool {
		return errors.Is(err, syscall.ECONNREFUSED) || !slices.Contains(g.holders.Members(), other)
	})
}

// change is waited for by some requests of other replicas.
type change struct {
	came    chan struct{}
	waiting int
}

// serveRouted answers another replica once this gateway serves a route in a form.
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
		case <-next.came:
		case <-r.Context().Done():
			g.unawait(key, next)
			return
		}
	}
}

// routedAs returns nil if a route is served in a form, and otherwise the route's next change, to be waited for or given to
// unawait.
func (g *Gateway) routedAs(key routing.Key, form string) *change {
	g.mu.Lock()
	defer g.mu.Unlock()
	if route := g.routes[key]; route != nil && route.form == form {
		return nil
	}
	next := g.changes[key]
	if next == nil {
		next = &change{came: make(chan struct{})}
		g.changes[key] = next
	}
	next.waiting++
	return next
}

// unawait forgets a change that nobody waits for any more.
func (g *Gateway) unawait(key routing.Key, next *change) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if next.waiting--; next.waiting == 0 && g.changes[key] == next {
		delete(g.changes, key)
	}
}

// rerouted has those go on that wait for a change of a route. g.mu is held.
func (g *Gateway) rerouted(key routing.Key) {
	if next := g.changes[key]; next != nil {
		delete(g.changes, key)
		close(next.came)
	}
}
