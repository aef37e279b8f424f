package filter

import (
	"fmt"
	"maps"
	"slices"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Explanation is why an event does not pass the filters of a Trigger.
type Explanation struct {
	// Passed is true if the event passes. The other fields are empty then.
	Passed bool
	// Place is the expression that the event does not pass, by its place in the spec of the Trigger, such as filters[0].exact.type. Empty
	// if that is unknown.
	Place string
	// Reason is a sentence without a subject, about the expression.
	Reason string
	// Unknown is true if the expression is invalid or takes too long to evaluate.
	Unknown bool
}

// Explain returns why an event does not pass the filters of a Trigger. See Compile for their meaning.
func Explain(b *Budget, attributes map[string]string, filters []eventing.Filter, e *event.Event) Explanation {
	compiled, err := Compile(attributes, filters)
	if err != nil {
		return Explanation{Reason: "is invalid: " + err.Error(), Unknown: true}
	}
	x := explainer{budget: b, event: e}
	switch passed, ok := compiled.Match(b, e); {
	case !ok:
		return Explanation{Reason: "takes too long to evaluate", Unknown: true}
	case passed:
		return Explanation{Passed: true}
	case len(filters) == 0:
		return x.conditions(exact, "filter.attributes", attributes)
	}
	return x.first("filters", filters)
}

// explainer explains filters that an event does not pass.
type explainer struct {
	budget *Budget
	event  *event.Event
}

// first explains the first filter of a list that the event does not pass.
func (x explainer) first(place string, filters []eventing.Filter) Explanation {
	for i := range filters {
		at := fmt.Sprintf("%s[%d]", place, i)
		n, err := compile(&filters[i])
		if err != nil {
			return Explanation{Place: at, Reason: "is invalid: " + err.Error(), Unknown: true}
		}
		switch passed, ok := (&Filter{root: n}).Match(x.budget, x.event); {
		case !ok:
			return Explanation{Place: at, Reason: "takes too long to evaluate", Unknown: true}
		case !passed:
			return x.filter(at, &filters[i])
		}
	}
	return Explanation{Place: place, Reason: "is not passed"}
}

// filter explains a filter that the event does not pass.
func (x explainer) filter(place string, f *eventing.Filter) Explanation {
	switch {
	case len(f.All) > 0:
		return x.first(place+".all", f.All)
	case len(f.Any) == 1:
		return x.first(place+".any", f.Any)
	case len(f.Any) > 0:
		return Explanation{Place: place + ".any", Reason: fmt.Sprintf("has %d filters, none of which passes the event", len(f.Any))}
	case f.Not != nil:
		return Explanation{Place: place + ".not", Reason: "has a filter that passes the event"}
	case f.CESQL != "":
		return Explanation{Place: place + ".cesql", Reason: fmt.Sprintf("is not true: %.200s", f.CESQL)}
	case len(f.Exact) > 0:
		return x.conditions(exact, place+".exact", f.Exact)
	case len(f.Prefix) > 0:
		return x.conditions(prefix, place+".prefix", f.Prefix)
	default:
		return x.conditions(suffix, place+".suffix", f.Suffix)
	}
}

// conditions explains the first condition of one kind that the event does not fulfil.
func (x explainer) conditions(op operator, place string, attributes map[string]string) Explanation {
	requires := map[operator]string{exact: "be", prefix: "begin with", suffix: "end with"}[op]
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		c := condition{op: op, name: name, value: attributes[name]}
		if c.value == "" {
			c.op = present
		}
		if c.holds(x.event) {
			continue
		}
		place := place + "." + name
		value, found := x.event.Get(name)
		if !found {
			return Explanation{Place: place, Reason: "requires an attribute that the event does not have"}
		}
		return Explanation{Place: place, Reason: fmt.Sprintf("must %s %.200q, the event has %.200q", requires, c.value, value)}
	}
	return Explanation{Place: place, Reason: "is not passed"}
}
