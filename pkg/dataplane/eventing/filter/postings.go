package filter

import (
	"slices"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
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

// fewConditions is the number of conditions up to which it costs less to ask those before a condition than to remember
// the entry. Beyond it that would take steps by the square of their number.
const fewConditions = 8

// first reports whether no condition before that of the posting finds the entry, too.
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

// match evaluates the filters of all.
func (l postings[K, V]) match(m *matching[K, V]) {
	for _, c := range l.chunks {
		for i := range c {
			m.evaluate(&c[i])
		}
	}
}
