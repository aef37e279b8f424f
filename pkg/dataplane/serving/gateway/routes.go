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

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// routedTimeout is the time that a replica has to serve a route as this one does. A slower replica is logged and no longer
// waited for: it must not prevent all Routes from becoming ready.
const routedTimeout = 10 * time.Second

// routes are the routes of the route table. It retains the pools that they refer to, and tracks which routes all replicas serve.
type routes struct {
	table    *routetable.Table[*pool.Pool]
	pools    *pool.Pools
	replicas *replicas

	// mu guards the fields below, and changes of the table.
	mu       sync.Mutex
	assigned map[routing.Key]*assigned
	// changes are the route changes that other replicas wait for.
	changes map[routing.Key]*change
}

// assigned is a route of the table, with the pools that it refers to.
type assigned struct {
	pools []*pool.Pool
	// form identifies the content of the route. servedByAll is true if the other replicas serve it in that form. stopQueries
	// cancels the queries to them, if any.
	form        string
	servedByAll bool
	stopQueries context.CancelFunc
}

// formOf returns a hash of a route's content, which is equal on all replicas.
func formOf(route *routing.Route) string {
	hash := sha256.New()
	json.NewEncoder(hash).Encode(route) //nolint:errcheck,errchkjson // neither the hash nor the types of a route return errors
	return hex.EncodeToString(hash.Sum(nil))
}

// SetRoute sets the hosts of a route with their traffic splits. A host of another route moves to this one (serving 8-3).
// Requests wait for Revisions that are not known yet.
func (s *routes) SetRoute(route *routing.Route) {
	form := formOf(route)
	s.mu.Lock()
	defer s.mu.Unlock()
	next := &assigned{form: form}
	s.table.Set(route, func(key routing.Key) *pool.Pool {
		p := s.pools.Retain(key)
		next.pools = append(next.pools, p)
		return p
	})
	s.assign(route.Key, next)
}

// DeleteRoute removes a route with its hosts.
func (s *routes) DeleteRoute(key routing.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.Delete(key)
	s.assign(key, nil)
}

// assign replaces the assigned pools of a route after a change of the table. s.mu must be held.
func (s *routes) assign(key routing.Key, next *assigned) {
	before := s.assigned[key]
	if before == nil {
		before = &assigned{}
	}
	delete(s.assigned, key)
	if next != nil {
		s.assigned[key] = next
	}
	for _, p := range before.pools {
		s.pools.Release(p)
	}
	if before.stopQueries != nil {
		before.stopQueries()
	}
	s.routeChanged(key)
}

// ServedByAll reports whether the gateways of all replicas serve a route in the form of the last SetRoute, so that requests
// may reach any of them. If not, it queries them and calls then from another goroutine once the result may have changed. It
// returns true for a route that is unknown to this gateway.
func (s *routes) ServedByAll(key routing.Key, then func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	route := s.assigned[key]
	if route == nil || route.servedByAll {
		return true
	}
	others := s.replicas.holders.Members()
	if len(others) == 0 {
		return true
	}
	if route.stopQueries == nil {
		ctx, cancel := context.WithTimeout(context.Background(), routedTimeout)
		route.stopQueries = cancel
		go func() {
			defer cancel()
			s.awaitRoutedAt(ctx, others, key, route.form)
			s.mu.Lock()
			route.servedByAll = true
			s.mu.Unlock()
			then()
		}()
	}
	return false
}

// awaitRoutedAt returns when each of the other replicas serves a route in a form or is unreachable, or when ctx is canceled.
func (s *routes) awaitRoutedAt(ctx context.Context, others []membership.Member, key routing.Key, form string) {
	query := url.Values{"namespace": {key.Namespace}, "route": {key.Name}, "form": {form}}
	var queries sync.WaitGroup
	for _, other := range others {
		queries.Go(func() {
			if err := s.awaitRouted(ctx, other, query); err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				klog.FromContext(ctx).Error(err, "Failed to confirm that a replica serves a Route; continuing without it", "replica", other.Name, "route", key, "waited", routedTimeout)
			}
		})
	}
	queries.Wait()
}

// awaitRouted queries another replica until it confirms that it serves a route, leaves the membership or refuses the connection:
// then it receives no requests, and will serve all routes before it accepts requests again.
func (s *routes) awaitRouted(ctx context.Context, other membership.Member, query url.Values) error {
	return s.replicas.await(ctx, other, routedPath, query, func(err error) bool {
		return errors.Is(err, syscall.ECONNREFUSED) || !slices.Contains(s.replicas.holders.Members(), other)
	})
}

// change is the next change of a route, for which queries of other replicas wait.
type change struct {
	happened chan struct{}
	waiting  int
}

// serveRouted responds to another replica once this gateway serves a route in a form.
func (s *routes) serveRouted(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	key := routing.Key{Namespace: query.Get("namespace"), Name: query.Get("route")}
	for {
		next := s.routedAs(key, query.Get("form"))
		if next == nil {
			w.WriteHeader(http.StatusOK)
			return
		}
		select {
		case <-next.happened:
		case <-r.Context().Done():
			s.stopWaiting(key, next)
			return
		}
	}
}

// routedAs returns nil if this gateway serves a route in a form, and otherwise the route's next change. The caller must wait for
// it or call stopWaiting.
func (s *routes) routedAs(key routing.Key, form string) *change {
	s.mu.Lock()
	defer s.mu.Unlock()
	if route := s.assigned[key]; route != nil && route.form == form {
		return nil
	}
	next := s.changes[key]
	if next == nil {
		next = &change{happened: make(chan struct{})}
		s.changes[key] = next
	}
	next.waiting++
	return next
}

// stopWaiting stops a wait for a change, and removes the change after the last one.
func (s *routes) stopWaiting(key routing.Key, next *change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next.waiting--; next.waiting == 0 && s.changes[key] == next {
		delete(s.changes, key)
	}
}

// routeChanged ends the waits for a change of a route. s.mu must be held.
func (s *routes) routeChanged(key routing.Key) {
	if next := s.changes[key]; next != nil {
		delete(s.changes, key)
		close(next.happened)
	}
}
