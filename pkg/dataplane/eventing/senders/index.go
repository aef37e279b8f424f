package senders

import (
	"slices"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// index finds the first policy that names a sender, in a time that depends on the length of the sender's name only. Immutable.
type index struct {
	// names has the first policy with each name, in lower case; prefixes, the first one with each prefix.
	names, prefixes map[string]int
	// lengths are the lengths of the prefixes, ascending.
	lengths []int
}

func newIndex(policies []eventing.SenderPolicy) index {
	x := index{names: map[string]int{}, prefixes: map[string]int{}}
	first := func(in map[string]int, key string, i int) {
		if _, found := in[key]; !found {
			in[key] = i
		}
	}
	for i := range policies {
		for _, subject := range policies[i].Subjects {
			first(x.names, strings.ToLower(subject), i)
			if prefix, wildcard := strings.CutSuffix(subject, "*"); wildcard {
				first(x.prefixes, prefix, i)
				x.lengths = append(x.lengths, len(prefix))
			}
		}
	}
	slices.Sort(x.lengths)
	x.lengths = slices.Compact(x.lengths)
	return x
}

// find returns the first policy that names a sender: the names are equal except for the case, or the sender begins with what precedes the
// last character * of the name.
func (x *index) find(sender string) (policy int, found bool) {
	policy, found = x.names[strings.ToLower(sender)]
	for _, length := range x.lengths {
		if length > len(sender) {
			break
		}
		if i, ok := x.prefixes[sender[:length]]; ok && (!found || i < policy) {
			policy, found = i, true
		}
	}
	return policy, found
}
