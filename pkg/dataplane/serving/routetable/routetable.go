package gateway

import (
	"sync/atomic"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// shards is the number of maps that host names are spread over: a change copies only those it touches.
const shards = 256

// maxHostName is the length of the longest DNS name.
const maxHostName = 253

// table says what hosts there are. Immutable.
type table [shards]map[string]*host

// host is one host name.
type host struct {
	route   routing.Key
	targets []target
	tags    map[string]*pool
	// clusterLocal tells that it is not for requests from outside.
	clusterLocal bool
	// seed makes the order of choices differ between hosts; requests counts them.
	seed     uint64
	requests atomic.Uint64
}

// target is a revision, with the sum of its percent and those of the targets before it.
type target struct {
	pool *pool
	upTo int
}

// fnv is FNV-1a of 64 bits.
func fnv(name string) uint64 {
	hash := uint64(14695981039346656037)
	for i := range len(name) {
		hash = (hash ^ uint64(name[i])) * 1099511628211
	}
	return hash
}

// lookup finds a host by what a Host header says: letters of any case, with or without port and trailing dot.
func lookup[T string | []byte](t *table, name T) *host {
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
	return t[shard(lower[:end])][string(lower[:end])]
}

// shard is FNV-1a, folded.
func shard[T string | []byte](name T) uint8 {
	hash := uint32(2166136261)
	for i := range len(name) {
		hash = (hash ^ uint32(name[i])) * 16777619
	}
	return uint8(hash ^ hash>>8 ^ hash>>16 ^ hash>>24)
}

// replace returns a table without the old hosts of a route and with its new ones. A host that another route has
// taken over meanwhile stays with that.
func (t *table) replace(route routing.Key, old []string, hosts map[string]*host) *table {
	next := *t
	var copied [shards]bool
	touch := func(name string) map[string]*host {
		i := shard(name)
		if !copied[i] {
			m := make(map[string]*host, len(next[i])+1)
			for k, v := range next[i] {
				m[k] = v
			}
			next[i], copied[i] = m, true
		}
		return next[i]
	}
	for _, name := range old {
		if h := next[shard(name)][name]; h != nil && h.route == route && hosts[name] == nil {
			delete(touch(name), name)
		}
	}
	for name, h := range hosts {
		touch(name)[name] = h
	}
	return &next
}
