// Package routetable maps host names to the Revisions that serve them, and applies the traffic split of each host.
package routetable

import (
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// shards is the number of maps that host names are spread over: a change copies only those it touches.
const shards = 256

// seed determines the map of a host name. It differs between processes, so that no tenant can choose names that share a map.
var seed = maphash.MakeSeed()

// maxHostName is the length of the longest DNS name.
const maxHostName = 253

// Table is a route table. B represents a Revision, such as its pool. Requests read it without a lock.
type Table[B any] struct {
	chooser  *chooser
	snapshot atomic.Pointer[snapshot[B]]

	// mu orders changes and guards hosts, the host names of each route.
	mu    sync.Mutex
	hosts map[routing.Key][]string
}

// snapshot maps host names to hosts. Immutable. It is not a persistent map of a library because Lookup has the name in a
// buffer on the stack, which benbjohnson/immutable would need on the heap: one more allocation for each request (BenchmarkLookup).
type snapshot[B any] [shards]map[string]*Host[B]

// Host is one host name of a route. It has at least one target.
type Host[B any] struct {
	// ClusterLocal is true if the host is unknown to requests from outside the cluster.
	ClusterLocal bool

	route   routing.Key
	targets []target[B]
	tags    map[string]B
	chooser *chooser
	// seed makes the order of choices differ between hosts; requests counts them.
	seed     uint64
	requests atomic.Uint64
}

// target is a Revision, with the sum of the percentages up to it.
type target[B any] struct {
	backend B
	upTo    int
}

// New returns an empty table.
func New[B any]() *Table[B] {
	t := &Table[B]{chooser: newChooser(rand.Uint64()), hosts: map[routing.Key][]string{}}
	t.snapshot.Store(new(snapshot[B]))
	return t
}

// Set replaces the hosts of a route. A host of another route becomes this one's: host names are made unique only here
// (serving 8-3). resolve is called for each reference to a Revision. Hosts without targets are left out.
func (t *Table[B]) Set(route *routing.Route, resolve func(routing.Key) B) {
	hosts := make(map[string]*Host[B], len(route.Hosts))
	for i := range route.Hosts {
		in := &route.Hosts[i]
		h := &Host[B]{route: route.Key, ClusterLocal: in.ClusterLocal, chooser: t.chooser, seed: rand.Uint64()}
		sum := 0
		for _, target := range in.Targets {
			sum += target.Percent
			h.add(resolve(target.Revision), sum)
		}
		if len(in.Tags) > 0 {
			h.tags = make(map[string]B, len(in.Tags))
			for tag, key := range in.Tags {
				h.tags[tag] = resolve(key)
			}
		}
		if len(h.targets) > 0 {
			hosts[in.Name] = h
		}
	}
	t.replace(route.Key, hosts)
}

// Delete removes the hosts of a route.
func (t *Table[B]) Delete(route routing.Key) { t.replace(route, nil) }

// replace publishes a snapshot without the old hosts of a route and with its new ones. A host that another route has
// taken over stays with that one.
func (t *Table[B]) replace(route routing.Key, hosts map[string]*Host[B]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := *t.snapshot.Load()
	var copied [shards]bool
	writable := func(name string) map[string]*Host[B] {
		i := shard(name)
		if !copied[i] {
			m := make(map[string]*Host[B], len(next[i])+1)
			for k, v := range next[i] {
				m[k] = v
			}
			next[i], copied[i] = m, true
		}
		return next[i]
	}
	for _, name := range t.hosts[route] {
		if h := next[shard(name)][name]; h != nil && h.route == route && hosts[name] == nil {
			delete(writable(name), name)
		}
	}
	names := make([]string, 0, len(hosts))
	for name, h := range hosts {
		writable(name)[name] = h
		names = append(names, name)
	}
	if t.hosts[route] = names; len(names) == 0 {
		delete(t.hosts, route)
	}
	t.snapshot.Store(&next)
}

// Lookup returns the host that a Host header names, or nil: case is ignored, a port and a trailing dot may follow.
func Lookup[B any, S string | []byte](t *Table[B], name S) *Host[B] {
	return lookup(t.snapshot.Load(), name)
}

func lookup[B any, S string | []byte](s *snapshot[B], name S) *Host[B] {
	end := len(name)
	for i := end - 1; i >= 0 && name[i] != ']'; i-- {
		if name[i] == ':' {
			end = i
			break
		}
	}
	if end > 0 && name[end-1] == '.' {
		end--
	}
	if end == 0 || end > maxHostName {
		return nil
	}
	var lower [maxHostName]byte
	for i := range end {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	return s[uint8(maphash.Bytes(seed, lower[:end]))][string(lower[:end])]
}

func shard(name string) uint8 { return uint8(maphash.String(seed, name)) }

func (h *Host[B]) add(backend B, upTo int) {
	h.targets = append(h.targets, target[B]{backend: backend, upTo: upTo})
}

// Tagged returns the Revision of a tag.
func (h *Host[B]) Tagged(tag string) (backend B, ok bool) {
	backend, ok = h.tags[tag]
	return backend, ok
}

// All reports whether a condition holds for all targets.
func (h *Host[B]) All(condition func(B) bool) bool {
	for i := range h.targets {
		if !condition(h.targets[i].backend) {
			return false
		}
	}
	return true
}

// Choose returns the Revision for the next request, according to the traffic split.
func (h *Host[B]) Choose() B {
	if len(h.targets) == 1 {
		return h.targets[0].backend
	}
	slot := h.chooser.slot(h.seed, h.requests.Add(1)-1)
	for i := range h.targets {
		if slot < h.targets[i].upTo {
			return h.targets[i].backend
		}
	}
	return h.targets[len(h.targets)-1].backend
}

// Choices returns the number of choices made.
func (h *Host[B]) Choices() uint64 { return h.requests.Load() }
