package route

import (
	"cmp"
	"slices"
	"sync"
	"time"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// claims knows which Routes ask for which host names, so that no two have the same one (serving 8-3): the
// oldest Route has it.
type claims struct {
	// mu guards what follows.
	mu sync.Mutex
	// settings are those that the host names follow from.
	settings *settings.Settings
	routes   map[routing.Key]claim
	hosts    map[string][]routing.Key
}

// claim is what one Route asks for. Hosts are sorted.
type claim struct {
	created time.Time
	hosts   []string
}

// set notes what a Route asks for, and returns the host names that it does not get, with the Routes that have
// them, and which other Routes have to look again. all lists every Route: before the first decision and when
// settings change everybody's names, each one's claims have to be known.
func (c *claims) set(route *servingv1.Route, wanted addresses, s *settings.Settings, all func() ([]*servingv1.Route, error)) (lost map[string]routing.Key, wake []routing.Key, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settings != s {
		routes, err := all()
		if err != nil {
			return nil, nil, err
		}
		c.settings, c.routes, c.hosts = s, map[routing.Key]claim{}, map[string][]routing.Key{}
		for _, other := range routes {
			if other.DeletionTimestamp == nil {
				c.put(keyOf(other), claimOf(other, addressesOf(other, s, URLs{})))
			}
		}
	}
	key, mine := keyOf(route), claimOf(route, wanted)
	wake = c.put(key, mine)
	for _, name := range mine.hosts {
		if owner := c.hosts[name][0]; owner != key {
			if lost == nil {
				lost = map[string]routing.Key{}
			}
			lost[name] = owner
		}
	}
	return lost, wake, nil
}

// drop forgets a Route, and returns which others have to look again.
func (c *claims) drop(key routing.Key) []routing.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.put(key, claim{})
}

// put replaces the claim of a Route, and returns the other Routes that want a name which it took or gave up.
func (c *claims) put(key routing.Key, wanted claim) []routing.Key {
	had := c.routes[key]
	if had.created.Equal(wanted.created) && slices.Equal(had.hosts, wanted.hosts) {
		return nil
	}
	var wake []routing.Key
	for _, name := range had.hosts {
		others := slices.DeleteFunc(c.hosts[name], func(k routing.Key) bool { return k == key })
		if wake = append(wake, others...); len(others) == 0 {
			delete(c.hosts, name)
		} else {
			c.hosts[name] = others
		}
	}
	delete(c.routes, key)
	if len(wanted.hosts) == 0 {
		return wake
	}
	c.routes[key] = wanted
	for _, name := range wanted.hosts {
		wake = append(wake, c.hosts[name]...)
		c.hosts[name] = append(c.hosts[name], key)
		slices.SortFunc(c.hosts[name], c.older)
	}
	slices.SortFunc(wake, compareKeys)
	return slices.Compact(wake)
}

// older orders Routes by age, and those of the same age by name.
func (c *claims) older(a, b routing.Key) int {
	return cmp.Or(c.routes[a].created.Compare(c.routes[b].created), compareKeys(a, b))
}

func compareKeys(a, b routing.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func claimOf(route *servingv1.Route, a addresses) claim {
	return claim{created: route.CreationTimestamp.Time, hosts: a.names()}
}

func keyOf(route *servingv1.Route) routing.Key {
	return routing.Key{Namespace: route.Namespace, Name: route.Name}
}
