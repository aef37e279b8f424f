package filter

import (
	"slices"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

// entry is a filter with its key and value.
type entry[K comparable, V any] struct {
	key    K
	filter *Filter
	value  V
	// conditions are the conditions for looking up the entry.
	conditions []condition
	// scanned is true if the entry is not looked up but always evaluated.
	scanned bool
}

// posting is an entry that one of its conditions finds.
type posting[K comparable, V any] struct {
	*entry[K, V]
	condition int
}

// fewConditions is the number of conditions up to which evaluating the earlier conditions costs less than remembering the
// entry. The cost grows with the square of their number.
const fewConditions = 8

// first reports whether no earlier condition also finds the entry.
func (p *posting[K, V]) first(e *event.Event) bool {
	for i := range p.condition {
		if p.conditions[i].holds(e) {
			return false
		}
	}
	return true
}

// chunk limits the number of postings that a change copies. Thousands of Triggers may select the same events.
const chunk = 64

// postings lists the entries that the same condition finds. Immutable.
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

// without returns the postings without an entry.
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

// match evaluates the filters of all postings.
func (l postings[K, V]) match(m *matching[K, V]) {
	for _, c := range l.chunks {
		for i := range c {
			m.evaluate(&c[i])
		}
	}
}
