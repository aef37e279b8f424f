// Package filter matches events with the filters of consumers: filters in the dialects of the CloudEvents Subscriptions API,
// compiled once, and an index of many of them.
package filter

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Filter passes some events. Immutable.
type Filter struct{ root node }

// Compile returns the filter of a Trigger (eventing TriggerFilter): an event passes if it passes all filters, or,
// without filters, if it has each of the attributes with its value, where an empty value stands for any. Without either
// all events pass. Errors name the invalid filter; validation prevents them.
func Compile(attributes map[string]string, filters []eventing.Filter) (*Filter, error) {
	if len(filters) == 0 {
		return &Filter{root: conditions(exact, attributes)}, nil
	}
	children, err := compileList("filters", filters)
	if err != nil {
		return nil, err
	}
	return &Filter{root: join(all, children)}, nil
}

// Match reports whether an event passes. ok is false if the budget does not suffice. Use an Index for many
// filters.
func (f *Filter) Match(b *Budget, e *event.Event) (matched, ok bool) {
	return f.match(b.of(e))
}

func (f *Filter) match(s *subject) (matched, ok bool) {
	s.budget.begin()
	matched = f.root.matches(s)
	ok = s.budget.end()
	return matched && ok, ok
}

func compileList(field string, filters []eventing.Filter) ([]node, error) {
	nodes := make([]node, len(filters))
	for i := range filters {
		n, err := compile(&filters[i])
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", field, i, err)
		}
		nodes[i] = n
	}
	return nodes, nil
}

var errDialects = errors.New("must have exactly one dialect")

// compile returns the node of a filter, which has exactly one dialect.
func compile(f *eventing.Filter) (n node, err error) {
	dialects := 0
	use := func(set bool, compiled func() (node, error)) {
		if !set {
			return
		}
		if dialects++; err == nil {
			n, err = compiled()
		}
	}
	list := func(op operator, name string, filters []eventing.Filter) {
		use(len(filters) > 0, func() (node, error) {
			children, err := compileList(name, filters)
			return join(op, children), err
		})
	}
	values := func(op operator, attributes map[string]string) {
		use(len(attributes) > 0, func() (node, error) { return conditions(op, attributes), nil })
	}
	list(all, "all", f.All)
	list(anyOf, "any", f.Any)
	values(exact, f.Exact)
	values(prefix, f.Prefix)
	values(suffix, f.Suffix)
	use(f.Not != nil, func() (node, error) {
		child, err := compile(f.Not)
		if err != nil {
			return node{}, fmt.Errorf("not: %w", err)
		}
		return node{op: not, children: []node{child}}, nil
	})
	use(f.CESQL != "", func() (node, error) {
		q, err := parse(f.CESQL)
		return node{op: cesql, query: q}, err
	})
	if err == nil && dialects != 1 {
		err = errDialects
	}
	return n, err
}

// conditions returns the node that all conditions of one kind on attributes hold.
func conditions(op operator, attributes map[string]string) node {
	children := make([]node, 0, len(attributes))
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		c := condition{op: op, name: name, value: attributes[name]}
		if c.value == "" {
			c.op = present
		}
		children = append(children, c.node())
	}
	return join(all, children)
}

// join returns the node that all, or any, of its children match.
func join(op operator, children []node) node {
	switch {
	case len(children) == 1:
		return children[0]
	case len(children) == 0 && op == all:
		return node{op: always}
	}
	// Expressions are the most expensive nodes, and often need not be evaluated.
	slices.SortStableFunc(children, func(a, b node) int { return a.op.cost() - b.op.cost() })
	return node{op: op, children: children}
}
