package filter

import (
	"cmp"
	"slices"
)

// Costs of a lookup by other conditions, relative to an exact value: many values share a prefix or suffix, and most events
// have an attribute that only needs to exist.
const (
	affixCost   = 8
	presentCost = 1 << 20
)

// cover is a set of conditions of which at least one holds for each event that a filter passes.
type cover struct {
	list []condition
	// cost is the number of filters that are looked up by the same conditions, and more for unspecific ones.
	cost int
}

// cover returns the conditions for looking up a filter that the fewest other filters share. found is false if there are no
// such conditions. The cover of a filter that never matches is empty.
func (x *Index[K, V]) cover(n *node) (best cover, found bool) {
	switch n.op {
	case never:
		return cover{}, true
	case exact, prefix, suffix, present:
		return x.coverOf(n.condition), true
	case cesql:
		for _, c := range n.query.required {
			if one := x.coverOf(c); !found || one.cost < best.cost {
				best, found = one, true
			}
		}
		return best, found
	case all:
		for i := range n.children {
			if one, ok := x.cover(&n.children[i]); ok && (!found || one.cost < best.cost) {
				best, found = one, true
			}
		}
		return best, found
	case anyOf:
		for i := range n.children {
			one, ok := x.cover(&n.children[i])
			if !ok {
				return cover{}, false
			}
			best.list, best.cost = append(best.list, one.list...), best.cost+one.cost
		}
		return best, true
	default: // always, not
		return cover{}, false
	}
}

// coverOf returns the cover that is one condition.
func (x *Index[K, V]) coverOf(c condition) cover {
	cost := 1 + x.attribute(c.name).postings(c).count
	switch c.op {
	case prefix, suffix:
		cost += affixCost
	case present:
		cost += presentCost
	}
	return cover{list: []condition{c}, cost: cost}
}

// conditions returns the conditions of the cover, each once.
func (c *cover) conditions() []condition {
	slices.SortFunc(c.list, func(a, b condition) int {
		return cmp.Or(cmp.Compare(a.op, b.op), cmp.Compare(a.name, b.name), cmp.Compare(a.value, b.value))
	})
	return slices.Compact(c.list)
}
