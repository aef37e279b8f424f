// Package routetable maps host names to the Revisions that serve them, and applies the traffic split of each host.
package routetable

import (
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/callers"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// fanBits is the binary logarithm of fanOut: the number of limbs of a snapshot, of branches of a limb, and of buckets of a branch.
const (
	fanBits = 6
	fanOut  = 1 << fanBits
)

// seed determines the bucket of a host name. It differs between processes, so that no tenant can choose names that share a bucket.
var seed = maphash.MakeSeed()

const (
	// maxHostName is the length of the longest DNS name, maxLabel of its longest label.
	maxHostName, maxLabel = 253, 63
	// wildcard is the first label of a host that serves all names with any label in its place.
	wildcard = '*'
)

// Table is a route table. B represents a Revision, such as its pool. Requests read it without a lock.
type Table[B any] struct {
	chooser  *chooser
	snapshot atomic.Pointer[snapshot[B]]

	// mu orders changes and guards hosts, the host names of each route.
	mu    sync.Mutex
	hosts map[routing.Key][]string
}

// snapshot maps host names to hosts by three parts of their hash. Immutable: a change copies the snapshot, and the limbs, branches and buckets
// that it touches, whatever the number of hosts: half a kilobyte for each of the first three. It is not a persistent map of a library because
// Lookup has the name in a buffer on the stack, which benbjohnson/immutable would need on the heap: one more allocation for each request
// (BenchmarkLookup).
type snapshot[B any] [fanOut]*limb[B]

// limb is a part of a snapshot.
type limb[B any] [fanOut]*branch[B]

// branch is a part of a limb. Its buckets are short: one or two hosts of 400,000.
type branch[B any] [fanOut]*bucket[B]

type bucket[B any] []entry[B]

type entry[B any] struct {
	name string
	host *Host[B]
}

// Host is one host name of a route. It has at least one target.
type Host[B any] struct {
	// ClusterLocal is true if the host is unknown to requests from outside the cluster.
	ClusterLocal bool
	// Alias is the host of another route that this one stands for, or nil; AliasOf returns the one for a path.
	Alias *routing.Alias
	// RedirectToHTTPS is true if requests without TLS are redirected to HTTPS. It is false for cluster-local hosts.
	RedirectToHTTPS bool
	// Callers restricts the callers; nil allows all clients.
	Callers *callers.Policy

	route   routing.Key
	paths   paths
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

// Set replaces the hosts of a route. A host of another route moves to this route: host names are made unique only here (serving 8-3).
// resolve is called for each reference to a Revision. Hosts without targets are omitted.
func (t *Table[B]) Set(route *routing.Route, resolve func(routing.Key) B) {
	hosts := make(map[string]*Host[B], len(route.Hosts))
	policy := callers.NewPolicy(route)
	for i := range route.Hosts {
		in := &route.Hosts[i]
		h := &Host[B]{
			route: route.Key, ClusterLocal: in.ClusterLocal, RedirectToHTTPS: in.RedirectToHTTPS && !in.ClusterLocal,
			Alias: in.Alias, paths: newPaths(in.Paths), Callers: policy, chooser: t.chooser, seed: rand.Uint64(),
		}
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
		if h.Aliased() || len(h.targets) > 0 {
			hosts[in.Name] = h
		}
	}
	t.replace(route.Key, hosts)
}

// Delete removes the hosts of a route.
func (t *Table[B]) Delete(route routing.Key) { t.replace(route, nil) }

// replace publishes a snapshot without the old hosts of a route and with its new ones. A host that has moved to another route is not removed.
func (t *Table[B]) replace(route routing.Key, hosts map[string]*Host[B]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := *t.snapshot.Load()
	for _, name := range t.hosts[route] {
		if h := next.get([]byte(name)); h != nil && h.route == route && hosts[name] == nil {
			next.set(name, nil)
		}
	}
	names := make([]string, 0, len(hosts))
	for name, h := range hosts {
		next.set(name, h)
		names = append(names, name)
	}
	if t.hosts[route] = names; len(names) == 0 {
		delete(t.hosts, route)
	}
	t.snapshot.Store(&next)
}

// set replaces the host of a name, in copies of its limb, branch and bucket. Nil removes it.
func (s *snapshot[B]) set(name string, host *Host[B]) {
	i, j, k := place([]byte(name))
	s[i] = copied(s[i])
	s[i][j] = copied(s[i][j])
	at := &s[i][j][k]
	var others bucket[B]
	if *at != nil {
		others = **at
	}
	changed := make(bucket[B], 0, len(others)+1)
	for _, e := range others {
		if e.name != name {
			changed = append(changed, e)
		}
	}
	if host != nil {
		changed = append(changed, entry[B]{name, host})
	}
	if *at = &changed; len(changed) == 0 {
		*at = nil
	}
}

// copied returns a copy of what a pointer points to, or a zero value.
func copied[T any](of *T) *T {
	c := new(T)
	if of != nil {
		*c = *of
	}
	return c
}

// Lookup returns the host that a Host header names, or nil: case is ignored, a port and a trailing dot may follow. A host with the
// exact name has precedence over a wildcard.
func Lookup[B any, S string | []byte](t *Table[B], name S) *Host[B] {
	return lookup(t.snapshot.Load(), name)
}

func lookup[B any, S string | []byte](s *snapshot[B], name S) *Host[B] {
	end := hostLength(name)
	if end == 0 || end > maxHostName {
		return nil
	}
	var key [maxHostName]byte
	for i := range end {
		key[i] = lower(name[i])
	}
	if key[0] == wildcard {
		// Only routes have wildcards.
		return nil
	}
	if h := s.get(key[:end]); h != nil {
		return h
	}
	dot := 0
	for dot < end && dot <= maxLabel && inLabel(key[dot]) {
		dot++
	}
	if dot == 0 || dot > maxLabel || dot == end || key[dot] != '.' {
		return nil
	}
	key[dot-1] = wildcard
	return s.get(key[dot-1 : end])
}

// get returns the host of a name in lower case, or nil.
func (s *snapshot[B]) get(name []byte) *Host[B] {
	i, j, k := place(name)
	if s[i] == nil || s[i][j] == nil || s[i][j][k] == nil {
		return nil
	}
	for _, e := range *s[i][j][k] {
		if e.name == string(name) {
			return e.host
		}
	}
	return nil
}

// place returns the limb, the branch and the bucket of a name.
func place(name []byte) (limb, branch, bucket uint64) {
	hash := maphash.Bytes(seed, name)
	return hash % fanOut, hash >> fanBits % fanOut, hash >> (2 * fanBits) % fanOut
}

// inLabel reports whether a label in lower case may contain c. Names of users' hosts may contain an underscore.
func inLabel(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// Follow returns the host that an alias names, or nil if its route does not serve it.
func Follow[B any](t *Table[B], alias *routing.Alias) *Host[B] {
	host := Lookup(t, alias.Host)
	if host == nil || host.route != alias.Route || host.Aliased() {
		return nil
	}
	return host
}

// hostLength returns the length of the host name in a Host header, without the port and without a trailing dot.
func hostLength[S string | []byte](header S) int {
	end := len(header)
	for i := end - 1; i >= 0 && header[i] != ']'; i-- {
		if header[i] == ':' {
			end = i
			break
		}
	}
	if end > 0 && header[end-1] == '.' {
		end--
	}
	return end
}

// HostName returns the host name in a Host header, as routes have it: in lower case, without the port and without a trailing dot.
func HostName(header string) string { return strings.ToLower(header[:hostLength(header)]) }

// SameHost reports whether a Host header names a host. Case is ignored, a port and a trailing dot may follow.
func SameHost[S string | []byte](header S, name string) bool {
	if hostLength(header) != len(name) {
		return false
	}
	for i := range len(name) {
		if lower(header[i]) != lower(name[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

func (h *Host[B]) add(backend B, upTo int) {
	h.targets = append(h.targets, target[B]{backend: backend, upTo: upTo})
}

// Route returns the route of the host.
func (h *Host[B]) Route() routing.Key { return h.route }

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
