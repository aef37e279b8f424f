package filter

import (
	"hash/maphash"

	"github.com/benbjohnson/immutable"
)

// table is an immutable map: a change returns another table that shares most of its memory with the first. The zero
// table is empty.
type table[K comparable, V any] struct{ entries *immutable.Map[K, V] }

// get returns the value of a key, or the zero value.
func (t table[K, V]) get(key K) (value V) {
	if t.entries != nil {
		value, _ = t.entries.Get(key)
	}
	return value
}

// with returns the table in which a key has a value.
func (t table[K, V]) with(key K, value V) table[K, V] {
	if t.entries == nil {
		t.entries = immutable.NewMap[K, V](hasher[K]{})
	}
	return table[K, V]{t.entries.Set(key, value)}
}

// without returns the table without a key.
func (t table[K, V]) without(key K) table[K, V] {
	if t.entries == nil {
		return t
	}
	return table[K, V]{t.entries.Delete(key)}
}

func (t table[K, V]) empty() bool { return t.entries == nil || t.entries.Len() == 0 }

// seed differs between processes, so that no user can choose colliding keys.
var seed = maphash.MakeSeed()

// hasher hashes the keys of all tables.
type hasher[K comparable] struct{}

// Hash implements immutable.Hasher.
func (hasher[K]) Hash(key K) uint32 { return uint32(maphash.Comparable(seed, key)) }

// Equal implements immutable.Hasher.
func (hasher[K]) Equal(a, b K) bool { return a == b }
