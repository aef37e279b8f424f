// Package hostnames decides which Route or DomainMapping serves a host name, so that no two serve the same one (serving 8-3).
package hostnames

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// Kind is a kind of object that serves host names.
type Kind string

const (
	// Route is the kind of Routes.
	Route Kind = "Route"
	// DomainMapping is the kind of DomainMappings.
	DomainMapping Kind = "DomainMapping"
)

// Owner is an object that claims host names.
type Owner struct {
	Kind Kind
	Key  routing.Key
}

// String returns a description for messages.
func (o Owner) String() string { return fmt.Sprintf("%s %q", o.Kind, o.Key) }

// Claim holds the host names that one object claims, and the ones that it serves according to its status, both sorted.
type Claim struct {
	Owner       Owner
	Created     time.Time
	Hosts, Held []string
}

// Participant is the controller of one kind.
type Participant struct {
	// List returns the claims of all objects of the kind.
	List func(s *settings.Settings) ([]Claim, error)
	// Enqueue enqueues an object whose host names may have another owner now.
	Enqueue func(key routing.Key)
}

// Claims tracks which objects claim which host names. An object whose status says that it serves the name keeps it; otherwise the
// oldest object gets it. So an object that starts to claim a name later never takes it from another one, and the decision is the same
// on all replicas and after a restart.
type Claims struct {
	participants map[Kind]Participant

	// mu guards the fields below.
	mu sync.Mutex
	// settings are the settings that the host names were derived from.
	settings *settings.Settings
	claims   map[Owner]Claim
	hosts    map[string][]Owner
}

// Join adds the controller of a kind. Call it before the first decision; the objects of all kinds must be known by then.
func (c *Claims) Join(kind Kind, p Participant) {
	if c.participants == nil {
		c.participants = map[Kind]Participant{}
	}
	c.participants[kind] = p
}

// Set records a claim, and returns the host names that its owner does not get, with the objects that have them. Other objects that
// the change affects are enqueued.
func (c *Claims) Set(claim Claim, s *settings.Settings) (lost map[string]Owner, err error) {
	lost, affected, err := c.set(claim, s)
	c.enqueue(affected)
	return lost, err
}

// Drop removes the claim of an object.
func (c *Claims) Drop(owner Owner) {
	c.mu.Lock()
	affected := c.put(Claim{Owner: owner})
	c.mu.Unlock()
	c.enqueue(affected)
}

// Owner returns the object that has a host name.
func (c *Claims) Owner(name string, s *settings.Settings) (owner Owner, found bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.load(s); err != nil {
		return Owner{}, false, err
	}
	if owners := c.hosts[name]; len(owners) > 0 {
		return owners[0], true, nil
	}
	return Owner{}, false, nil
}

func (c *Claims) set(claim Claim, s *settings.Settings) (lost map[string]Owner, affected []Owner, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.load(s); err != nil {
		return nil, nil, err
	}
	affected = c.put(claim)
	for _, name := range claim.Hosts {
		if owner := c.hosts[name][0]; owner != claim.Owner {
			if lost == nil {
				lost = map[string]Owner{}
			}
			lost[name] = owner
		}
	}
	return lost, affected, nil
}

// load reads the claims of all objects before the first decision and when settings change host names. c.mu must be held.
func (c *Claims) load(s *settings.Settings) error {
	if c.settings == s {
		return nil
	}
	var all []Claim
	for _, p := range c.participants {
		claims, err := p.List(s)
		if err != nil {
			return err
		}
		all = append(all, claims...)
	}
	c.settings, c.claims, c.hosts = s, map[Owner]Claim{}, map[string][]Owner{}
	for _, claim := range all {
		c.put(claim)
	}
	return nil
}

func (c *Claims) enqueue(owners []Owner) {
	for _, owner := range owners {
		if p, ok := c.participants[owner.Kind]; ok {
			p.Enqueue(owner.Key)
		}
	}
}

// put replaces the claim of an object, and returns the other objects that want a name that it claims now or claimed before. c.mu
// must be held.
func (c *Claims) put(wanted Claim) []Owner {
	owner := wanted.Owner
	had := c.claims[owner]
	if had.Created.Equal(wanted.Created) && slices.Equal(had.Hosts, wanted.Hosts) && slices.Equal(had.Held, wanted.Held) {
		return nil
	}
	var affected []Owner
	for _, name := range had.Hosts {
		others := slices.DeleteFunc(c.hosts[name], func(o Owner) bool { return o == owner })
		if affected = append(affected, others...); len(others) == 0 {
			delete(c.hosts, name)
		} else {
			c.hosts[name] = others
		}
	}
	delete(c.claims, owner)
	if len(wanted.Hosts) > 0 {
		c.claims[owner] = wanted
	}
	for _, name := range wanted.Hosts {
		affected = append(affected, c.hosts[name]...)
		c.hosts[name] = append(c.hosts[name], owner)
		slices.SortFunc(c.hosts[name], func(a, b Owner) int { return c.compare(name, a, b) })
	}
	slices.SortFunc(affected, compareOwners)
	return slices.Compact(affected)
}

// compare orders the objects that claim a host name: holders first, then by age, then by name.
func (c *Claims) compare(name string, a, b Owner) int {
	rank := func(owner Owner) int {
		if _, held := slices.BinarySearch(c.claims[owner].Held, name); held {
			return 0
		}
		return 1
	}
	return cmp.Or(rank(a)-rank(b), c.claims[a].Created.Compare(c.claims[b].Created), compareOwners(a, b))
}

func compareOwners(a, b Owner) int {
	return cmp.Or(cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name), cmp.Compare(a.Kind, b.Kind))
}
