package filter

import (
	"strings"

	sdk "github.com/cloudevents/sdk-go/v2/event"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

// operator is the operation of a node of a filter.
type operator byte

const (
	always operator = iota
	never
	// Conditions on the value of one attribute, which must exist.
	exact
	prefix
	suffix
	present
	// Combinations of other nodes.
	all
	anyOf
	not
	cesql
)

// cost ranks operators by the cost of their evaluation.
func (o operator) cost() int {
	switch o {
	case cesql:
		return 2
	case all, anyOf, not:
		return 1
	default:
		return 0
	}
}

// node is a filter, or part of one.
type node struct {
	op operator
	// condition is set for the operators that are conditions, query for cesql.
	condition condition
	query     *query
	children  []node
}

// condition is a requirement for one attribute.
type condition struct {
	op          operator
	name, value string
}

// subject is an event that filters are evaluated for, with results that they share.
type subject struct {
	event *event.Event
	// sdk is the event in the form of the SDK, once asked is set.
	sdk   *sdk.Event
	asked bool
	// budget bounds the steps of evaluation.
	budget *Budget
}

// spend counts steps before they are taken, and returns false if they may not be.
func (s *subject) spend(steps int) bool { return s.budget.spend(steps) }

// converted returns the event in the form of the SDK, or nil if the SDK cannot represent it. Converting costs more than most filters.
func (s *subject) converted() *sdk.Event {
	if !s.asked {
		s.asked = true
		if converted, err := s.event.ToSDK(); err == nil {
			s.sdk = converted
		}
	}
	return s.sdk
}

// matches reports whether an event passes. The result is meaningless if the budget was exceeded.
func (n *node) matches(s *subject) bool {
	switch n.op {
	case always:
		return true
	case never:
		return false
	case all:
		for i := range n.children {
			if !n.children[i].matches(s) {
				return false
			}
		}
		return true
	case anyOf:
		for i := range n.children {
			if n.children[i].matches(s) {
				return true
			}
		}
		return false
	case not:
		return s.spend(nodeCost) && !n.children[0].matches(s)
	case cesql:
		return n.query.matches(s)
	default:
		return s.spend(n.condition.cost(s.event)) && n.condition.holds(s.event)
	}
}

// node returns the node of a condition. The specversion is not in Event.Attributes, so it is never a condition for a lookup.
func (c condition) node() node {
	if c.name != "specversion" {
		return node{op: c.op, condition: c}
	}
	switch current, former := c.accepts("1.0"), c.accepts("0.3"); {
	case current && former:
		return node{op: always}
	case !current && !former:
		return node{op: never}
	}
	inner := node{op: not, children: []node{{op: c.op, condition: c}}}
	return node{op: not, children: []node{inner}}
}

// holds reports whether an event fulfils the condition.
func (c *condition) holds(e *event.Event) bool {
	value, found := e.Get(c.name)
	return found && c.accepts(value)
}

// cost returns the steps that holds takes. Attributes are searched by name, values compared 16 bytes at a time.
func (c *condition) cost(e *event.Event) int { return nodeCost + len(e.Attributes) + len(c.value)/16 }

func (c *condition) accepts(value string) bool {
	switch c.op {
	case exact:
		return value == c.value
	case prefix:
		return strings.HasPrefix(value, c.value)
	case suffix:
		return strings.HasSuffix(value, c.value)
	default: // present
		return true
	}
}
