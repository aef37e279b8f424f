package filter

import (
	"slices"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/event"
)

// entry is a filter with what it stands for.
type entry[K comparable, V any] struct {
	key    K
	filter *Filter
	value  V
	// conditions are those the entry is looked up by.
	conditions []condition
	// scanned tells that it is not looked up.
	scanned bool
}

// posting is an entry where it is found by one of its conditions.
type posting[K comparable, V any] struct {
	*entry[K, V]
	condition int
}

// first tells that no condition before that of the posting finds the entry, too.
func (p *posting[K, V]) first(e *event.Event) bool {
	for i := range p.condition {
		if p.conditions[i].holds(e) {
			return false
		}
	}
	return true
}

// chunk bounds what a change of postings copies. Thousands of Triggers may ask for the same events.
const chunk = 64

// postings are entries found by the same condition. Immutable.
type postings[K comparable, V any] struct {
	// chunks have 1 to chunk postings each.
	chunks [][]posting[K, V]
	count  int
}

// with returns the postings and one more.
func (l postings[K, V]) with(p posting[K, V]) postings[K, V] {
	chunks := slices.Clone(l.chunks)
	if last := len(chunks) - 1; last >= 0 && len(chunks[last]) < chunk {
		grown := make([]posting[K, V], 0, len(chunks[last])+1)
		chunks[last] = append(append(grown, chunks[last]...), p)
	} else {
		chunks = append(chunks, []posting[K, V]{p})
	}
	return postings[K, V]{chunks: chunks, count: l.count + 1}
}

// without returns the postings but that of an entry.
func (l postings[K, V]) without(e *entry[K, V]) postings[K, V] {
	for i, c := range l.chunks {
		at := slices.IndexFunc(c, func(p posting[K, V]) bool { return p.entry == e })
		if at < 0 {
			continue
		}
		chunks := slices.Clone(l.chunks)
		if len(c) > 1 {
			chunks[i] = slices.Delete(slices.Clone(c), at, at+1)
		} else {
			chunks = slices.Delete(chunks, i, i+1)
		}
		return postings[K, V]{chunks: chunks, count: l.count - 1}
	}
	return l
}

// match appends the values of those whose filters pass an event.
func (l postings[K, V]) match(s *subject, found []V) []V {
	for _, c := range l.chunks {
		for i := range c {
			if p := &c[i]; p.first(s.event) && p.filter.root.matches(s) {
				found = append(found, p.value)
			}
		}
	}
	return found
}
