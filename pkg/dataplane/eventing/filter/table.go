package filter

import (
	"hash/maphash"
	"math/bits"
	"slices"
)

// seed is that of the hashes of all tables. It differs between processes, so that nobody can choose colliding keys.
var seed = maphash.MakeSeed()

// Each level of a table tells keys apart by some bits of their hash.
const levelBits = 5

// table is an immutable map: changes return another one, which shares most of what it holds with the first. The zero
// table is empty.
type table[K comparable, V any] struct{ root *branch[K, V] }

// branch is a level of a table. Its slots are those of the hashes that occur, one bit each, in order.
type branch[K comparable, V any] struct {
	occurring uint32
	slots     []slot[K, V]
}

// slot holds either the next level or the keys of one hash.
type slot[K comparable, V any] struct {
	child *branch[K, V]
	leaf  *leaf[K, V]
}

// leaf is a key with its value, and others of the same hash.
type leaf[K comparable, V any] struct {
	hash  uint64
	key   K
	value V
	next  *leaf[K, V]
}

// get returns the value of a key, or the zero value.
func (t table[K, V]) get(key K) (value V) {
	hash := maphash.Comparable(seed, key)
	shift := 0
	for b := t.root; b != nil; shift += levelBits {
		i, bit := b.place(hash, shift)
		if b.occurring&bit == 0 {
			return value
		}
		for l := b.slots[i].leaf; l != nil; l = l.next {
			if l.key == key {
				return l.value
			}
		}
		b = b.slots[i].child
	}
	return value
}

// with returns the table in which a key has a value.
func (t table[K, V]) with(key K, value V) table[K, V] {
	hash := maphash.Comparable(seed, key)
	return table[K, V]{t.root.with(&leaf[K, V]{hash: hash, key: key, value: value}, 0)}
}

// without returns the table that does not have a key.
func (t table[K, V]) without(key K) table[K, V] {
	return table[K, V]{t.root.without(key, maphash.Comparable(seed, key), 0)}
}

// place returns the slot of a hash, and the bit that tells whether it occurs.
func (b *branch[K, V]) place(hash uint64, shift int) (slot int, bit uint32) {
	bit = 1 << (hash >> shift & (1<<levelBits - 1))
	return bits.OnesCount32(b.occurring & (bit - 1)), bit
}

func (b *branch[K, V]) with(l *leaf[K, V], shift int) *branch[K, V] {
	if b == nil {
		b = &branch[K, V]{}
	}
	i, bit := b.place(l.hash, shift)
	if b.occurring&bit == 0 {
		slots := make([]slot[K, V], 0, len(b.slots)+1)
		slots = append(append(append(slots, b.slots[:i]...), slot[K, V]{leaf: l}), b.slots[i:]...)
		return &branch[K, V]{occurring: b.occurring | bit, slots: slots}
	}
	changed := &branch[K, V]{occurring: b.occurring, slots: slices.Clone(b.slots)}
	switch s := &changed.slots[i]; {
	case s.child != nil:
		s.child = s.child.with(l, shift+levelBits)
	case s.leaf.hash == l.hash:
		l.next = s.leaf.without(l.key)
		s.leaf = l
	default:
		var child *branch[K, V]
		*s = slot[K, V]{child: child.with(s.leaf, shift+levelBits).with(l, shift+levelBits)}
	}
	return changed
}

// without returns nil for a branch that would be empty.
func (b *branch[K, V]) without(key K, hash uint64, shift int) *branch[K, V] {
	if b == nil {
		return nil
	}
	i, bit := b.place(hash, shift)
	if b.occurring&bit == 0 {
		return b
	}
	kept := slot[K, V]{child: b.slots[i].child.without(key, hash, shift+levelBits), leaf: b.slots[i].leaf.without(key)}
	switch {
	case kept == b.slots[i]:
		return b
	case kept != slot[K, V]{}:
		changed := &branch[K, V]{occurring: b.occurring, slots: slices.Clone(b.slots)}
		changed.slots[i] = kept
		return changed
	case len(b.slots) == 1:
		return nil
	default:
		return &branch[K, V]{occurring: b.occurring &^ bit, slots: slices.Delete(slices.Clone(b.slots), i, i+1)}
	}
}

// without returns the leaves but that of a key.
func (l *leaf[K, V]) without(key K) *leaf[K, V] {
	switch {
	case l == nil:
		return nil
	case l.key == key:
		return l.next
	}
	next := l.next.without(key)
	if next == l.next {
		return l
	}
	return &leaf[K, V]{hash: l.hash, key: l.key, value: l.value, next: next}
}
