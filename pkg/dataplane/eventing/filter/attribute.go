package filter

import "slices"

// attribute holds the postings of the conditions on one attribute. Immutable.
type attribute[K comparable, V any] struct {
	exact              table[string, postings[K, V]]
	prefix, suffix     table[string, postings[K, V]]
	prefixes, suffixes lengths
	present            postings[K, V]
}

// postings returns the postings of a condition.
func (a *attribute[K, V]) postings(c condition) postings[K, V] {
	switch c.op {
	case exact:
		return a.exact.get(c.value)
	case prefix:
		return a.prefix.get(c.value)
	case suffix:
		return a.suffix.get(c.value)
	default: // present
		return a.present
	}
}

// with returns the attribute in which a condition has postings.
func (a *attribute[K, V]) with(c condition, list postings[K, V]) *attribute[K, V] {
	changed := *a
	switch c.op {
	case exact:
		changed.exact = replaced(a.exact, c.value, list)
	case prefix:
		changed.prefix = replaced(a.prefix, c.value, list)
		changed.prefixes = a.prefixes.with(len(c.value), occurring(list)-occurring(a.postings(c)))
	case suffix:
		changed.suffix = replaced(a.suffix, c.value, list)
		changed.suffixes = a.suffixes.with(len(c.value), occurring(list)-occurring(a.postings(c)))
	default: // present
		changed.present = list
	}
	return &changed
}

// replaced returns the table in which a value has the postings, or which lacks the value if the list is empty.
func replaced[K comparable, V any](t table[string, postings[K, V]], value string, list postings[K, V]) table[string, postings[K, V]] {
	if list.count == 0 {
		return t.without(value)
	}
	return t.with(value, list)
}

// occurring returns 1 if there are postings, otherwise 0.
func occurring[K comparable, V any](list postings[K, V]) int { return min(list.count, 1) }

func (a *attribute[K, V]) empty() bool {
	return a.exact.empty() && a.prefix.empty() && a.suffix.empty() && a.present.count == 0
}

// match evaluates the filters that the value of an attribute leads to, with one lookup for the exact value and one for
// each length of prefixes and suffixes.
func (a *attribute[K, V]) match(m *matching[K, V], value string) {
	if !a.exact.empty() {
		a.exact.get(value).match(m)
	}
	for _, l := range a.prefixes {
		if l.bytes > len(value) {
			break
		}
		a.prefix.get(value[:l.bytes]).match(m)
	}
	for _, l := range a.suffixes {
		if l.bytes > len(value) {
			break
		}
		a.suffix.get(value[len(value)-l.bytes:]).match(m)
	}
	a.present.match(m)
}

// lengths lists the lengths of strings in ascending order, each with the number of strings. Immutable.
type lengths []struct{ bytes, strings int }

// with returns the lengths with one more string, or one less.
func (l lengths) with(bytes, more int) lengths {
	changed := slices.Clone(l)
	i, found := slices.BinarySearchFunc(changed, bytes, func(have struct{ bytes, strings int }, want int) int { return have.bytes - want })
	if !found {
		changed = slices.Insert(changed, i, struct{ bytes, strings int }{bytes: bytes})
	}
	if changed[i].strings += more; changed[i].strings == 0 {
		changed = slices.Delete(changed, i, i+1)
	}
	return changed
}
