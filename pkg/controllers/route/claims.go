package route

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// claims tracks which Routes claim which host names, so that no two serve the same one (serving 8-3). A Route whose status
// says that it serves the name keeps it; otherwise the oldest Route gets it. So a Route that starts to claim a name later
// never takes it from another one, and the decision is the same on all replicas and after a restart.
type claims struct {
	// mu guards the fields below.
	mu sync.Mutex
	// settings are the settings that the host names were derived from.
	settings *settings.Settings
	routes   map[routing.Key]claim
	hosts    map[string][]routing.Key
}

// claim holds the host names that one Route claims, and the ones that it serves according to its status, both sorted.
type claim struct {
	created     time.Time
	hosts, held []string
}

// set records the claims of a Route, and returns the host names that it does not get, with the Routes that have them, and the other
// Routes to reconcile. all lists every Route: before the first decision and when settings change host names, the claims of all Routes
// have to be known.
func (c *claims) set(route *servingv1.Route, wanted addresses, s *settings.Settings, all func() ([]*servingv1.Route, error),
	addressesOf func(*servingv1.Route, *settings.Settings) (addresses, error),
) (lost map[string]routing.Key, affected []routing.Key, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settings != s {
		routes, err := all()
		if err != nil {
			return nil, nil, err
		}
		c.settings, c.routes, c.hosts = s, map[routing.Key]claim{}, map[string][]routing.Key{}
		for _, other := range routes {
			if other.DeletionTimestamp != nil {
				continue
			}
			named, err := addressesOf(other, s)
			if err != nil {
				c.settings = nil
				return nil, nil, err
			}
			c.put(keyOf(other), claimOf(other, named))
		}
	}
	key, mine := keyOf(route), claimOf(route, wanted)
	affected = c.put(key, mine)
	for _, name := range mine.hosts {
		if owner := c.hosts[name][0]; owner != key {
			if lost == nil {
				lost = map[string]routing.Key{}
			}
			lost[name] = owner
		}
	}
	return lost, affected, nil
}

// drop removes the claims of a Route, and returns the other Routes to reconcile.
func (c *claims) drop(key routing.Key) []routing.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.put(key, claim{})
}

// put replaces the claim of a Route, and returns the other Routes that want a name that it claims now or claimed before.
func (c *claims) put(key routing.Key, wanted claim) []routing.Key {
	had := c.routes[key]
	if had.created.Equal(wanted.created) && slices.Equal(had.hosts, wanted.hosts) && slices.Equal(had.held, wanted.held) {
		return nil
	}
	var affected []routing.Key
	for _, name := range had.hosts {
		others := slices.DeleteFunc(c.hosts[name], func(k routing.Key) bool { return k == key })
		if affected = append(affected, others...); len(others) == 0 {
			delete(c.hosts, name)
		} else {
			c.hosts[name] = others
		}
	}
	delete(c.routes, key)
	if len(wanted.hosts) == 0 {
		return affected
	}
	c.routes[key] = wanted
	for _, name := range wanted.hosts {
		affected = append(affected, c.hosts[name]...)
		c.hosts[name] = append(c.hosts[name], key)
		slices.SortFunc(c.hosts[name], func(a, b routing.Key) int { return c.compare(name, a, b) })
	}
	slices.SortFunc(affected, compareKeys)
	return slices.Compact(affected)
}

// compare orders the Routes that claim a host name: holders first, then by age, then by name.
func (c *claims) compare(name string, a, b routing.Key) int {
	rank := func(key routing.Key) int {
		if _, held := slices.BinarySearch(c.routes[key].held, name); held {
			return 0
		}
		return 1
	}
	return cmp.Or(rank(a)-rank(b), c.routes[a].created.Compare(c.routes[b].created), compareKeys(a, b))
}

func compareKeys(a, b routing.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func claimOf(route *servingv1.Route, a addresses) claim {
	return claim{created: route.CreationTimestamp.Time, hosts: a.names(), held: held(&route.Status, a.hosts)}
}

// conflictsAnnotationKey in status lists the host names of the Route that another Route serves, as JSON.
const conflictsAnnotationKey = servingv1.GroupName + "/hostname-conflicts"

// held returns which of some host names a Route serves according to its status, sorted: the host names of its URL,
// its address and its tags, without names that it has lost.
func held(status *servingv1.RouteStatus, hosts []host) []string {
	if status.Address == nil {
		// Never reconciled.
		return nil
	}
	var lost []string
	if list, found := status.Annotations[conflictsAnnotationKey]; found {
		if err := json.Unmarshal([]byte(list), &lost); err != nil {
			return nil
		}
	} else if c := status.Conditions.Get(servingv1.RouteConditionIngressReady); c != nil && c.Reason == ReasonHostnameConflict {
		// Written by a release that did not record which.
		return nil
	}
	urls := map[string]string{"": status.URL}
	for _, t := range status.Traffic {
		if t.Tag != "" {
			urls[t.Tag] = t.URL
		}
	}
	var names []string
	for _, h := range hosts {
		at, known := urls[h.tag]
		if !known || slices.Contains(lost, h.name) || !h.internal && !isAt(at, h.name) {
			continue
		}
		names = append(names, h.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isAt reports whether the host of a URL is name.
func isAt(address, name string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Hostname() == name
}

// writeConflicts records in a status which host names other Routes serve.
func writeConflicts(status *servingv1.RouteStatus, lost map[string]routing.Key) error {
	if len(lost) == 0 {
		delete(status.Annotations, conflictsAnnotationKey)
		return nil
	}
	data, err := json.Marshal(slices.Sorted(maps.Keys(lost)))
	if err != nil {
		return fmt.Errorf("encode lost host names: %w", err)
	}
	if status.Annotations == nil {
		status.Annotations = map[string]string{}
	}
	status.Annotations[conflictsAnnotationKey] = string(data)
	return nil
}

func keyOf(route *servingv1.Route) routing.Key {
	return routing.Key{Namespace: route.Namespace, Name: route.Name}
}
