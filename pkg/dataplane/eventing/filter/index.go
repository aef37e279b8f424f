package filter

import "github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"

// Index finds the filters that an event passes. The cost of a match grows with the number of filters that pass, not with the
// number of filters: a filter is looked up by one or several conditions, of which each event that it passes fulfils at least
// one. Filters without such conditions, such as negations, are evaluated one after the other. Immutable: a change returns
// another index that shares most of its memory with the first. The zero Index has no filters.
type Index[K comparable, V any] struct {
	entries table[K, *entry[K, V]]
	names   table[string, *attribute[K, V]]
	// rest holds the filters without conditions for a lookup.
	rest postings[K, V]
}

// With returns the index in which a key has a filter, and the value that Match returns for it.
func (x *Index[K, V]) With(key K, filter *Filter, value V) *Index[K, V] {
	changed := *x.Without(key)
	added := &entry[K, V]{key: key, filter: filter, value: value}
	if covering, found := changed.cover(&filter.root); found {
		added.conditions = covering.conditions()
	} else {
		added.scanned = true
		changed.rest = changed.rest.with(posting[K, V]{entry: added})
	}
	changed.entries = changed.entries.with(key, added)
	for i, c := range added.conditions {
		a := changed.attribute(c.name)
		changed.names = changed.names.with(c.name, a.with(c, a.postings(c).with(posting[K, V]{added, i})))
	}
	return &changed
}

// Without returns the index without a key.
func (x *Index[K, V]) Without(key K) *Index[K, V] {
	gone := x.entries.get(key)
	if gone == nil {
		return x
	}
	changed := *x
	changed.entries = changed.entries.without(key)
	if gone.scanned {
		changed.rest = changed.rest.without(gone)
	}
	for _, c := range gone.conditions {
		a := changed.attribute(c.name)
		if a = a.with(c, a.postings(c).without(gone)); a.empty() {
			changed.names = changed.names.without(c.name)
		} else {
			changed.names = changed.names.with(c.name, a)
		}
	}
	return &changed
}

// Match appends the values of all keys whose filters pass an event, each once, in no particular order. exceeded has the
// values whose filters exceeded the budget, so that their result is unknown.
func (x *Index[K, V]) Match(b *Budget, e *event.Event, found []V) (matched, exceeded []V) {
	m := matching[K, V]{subject: b.of(e), matched: found}
	for i := range e.Attributes {
		if a := x.names.get(e.Attributes[i].Name); a != nil {
			a.match(&m, e.Attributes[i].Value)
		}
	}
	x.rest.match(&m)
	return m.matched, m.exceeded
}

// matching is the state of matching one event.
type matching[K comparable, V any] struct {
	*subject
	matched, exceeded []V
	// seen has the found entries with more than fewConditions conditions.
	seen map[*entry[K, V]]struct{}
}

// evaluate evaluates the filter of a posting, unless another condition found the same entry before.
func (m *matching[K, V]) evaluate(p *posting[K, V]) {
	if len(p.conditions) <= fewConditions {
		if !p.first(m.event) {
			return
		}
	} else if _, seen := m.seen[p.entry]; seen {
		return
	} else {
		if m.seen == nil {
			m.seen = map[*entry[K, V]]struct{}{}
		}
		m.seen[p.entry] = struct{}{}
	}
	switch matched, ok := p.filter.match(m.subject); {
	case !ok:
		m.exceeded = append(m.exceeded, p.value)
	case matched:
		m.matched = append(m.matched, p.value)
	}
}

// attribute returns the postings of an attribute. It is never nil.
func (x *Index[K, V]) attribute(name string) *attribute[K, V] {
	if a := x.names.get(name); a != nil {
		return a
	}
	return &attribute[K, V]{}
}
