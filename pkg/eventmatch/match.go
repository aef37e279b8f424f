// Package eventmatch decides which events pass the filters of Triggers, and explains the decision of each filter.
package eventmatch

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Matcher decides about events for Triggers. The zero value knows no events.
type Matcher struct {
	// Recent returns the last events that a Broker accepted, at most MaxRecent, without data. It returns none if this replica does not know
	// them. Nil knows none.
	Recent func(ctx context.Context, broker eventing.Key) []*event.Event

	// maxDelay replaces the constant in tests.
	maxDelay time.Duration
	// evaluations is the number of evaluations of recent events in progress.
	evaluations atomic.Int32
}

// ToJSON returns the event of an HTTP request with canonical header names in the JSON format, without its data, which filters do not
// read. Errors follow the name of an event.
func (*Matcher) ToJSON(header http.Header, body []byte) ([]byte, error) {
	e, err := one(header, body)
	if err != nil {
		return nil, err
	}
	bare := *e
	bare.Data = nil
	return bare.MarshalStructured()
}

// Match returns the decision about an event in the JSON format. Errors follow the name of an event, except that of ctx.
func (*Matcher) Match(ctx context.Context, t *eventingv1.Trigger, data []byte) (*eventingv1.TriggerMatchStatus, error) {
	e, err := one(http.Header{"Content-Type": {"application/cloudevents+json"}}, data) //nolint:contextcheck,nolintlint // it does not block
	if err != nil {
		return nil, err
	}
	status := &eventingv1.TriggerMatchStatus{}
	budget := filter.NewBudget(ctx)
	attributes, filters := FiltersOf(t)
	switch compiled, err := filter.Compile(attributes, filters); {
	case err != nil:
		status.Reason = fmt.Sprintf("the filters are invalid: %v", err)
	default:
		var ok bool
		if status.Matched, ok = compiled.Match(budget, e); !ok {
			status.Reason = "the filters take too long to evaluate; such events are not delivered"
		}
	}
	x := explainer{budget: budget, event: e}
	if len(filters) > 0 {
		for i := range t.Spec.Filters {
			x.filter(field.NewPath("spec", "filters").Index(i), &t.Spec.Filters[i])
		}
	}
	if t.Spec.Filter != nil && len(t.Spec.Filter.Attributes) > 0 {
		path := field.NewPath("spec", "filter", "attributes")
		if len(filters) > 0 {
			x.decide(path, ignored, "spec.filters overrides it")
		} else {
			x.attributes(path, attributes, func(one map[string]string) (map[string]string, []eventing.Filter) { return one, nil })
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	status.Filters = x.decisions
	if !status.Matched && status.Reason == "" {
		status.Reason = "does not pass the filters"
		if explained := filter.Explain(budget, attributes, filters, e); explained.Place != "" {
			status.Reason = "spec." + explained.Place + " " + explained.Reason
		}
	}
	return status, nil
}

// one returns the event of a request, which may not be a batch.
func one(header http.Header, body []byte) (*event.Event, error) {
	events, err := event.FromRequest(header, body)
	switch {
	case err != nil:
		return nil, err
	case len(events) != 1:
		return nil, fmt.Errorf("must be one event, not a batch of %d", len(events))
	}
	return events[0], nil
}

// FiltersOf returns the filters of a Trigger in the form of the data plane.
func FiltersOf(t *eventingv1.Trigger) (attributes map[string]string, filters []eventing.Filter) {
	if t.Spec.Filter != nil {
		attributes = t.Spec.Filter.Attributes
	}
	return attributes, streams.FiltersOf(t.Spec.Filters)
}

// result is the decision of a filter.
type result string

const (
	passed    result = eventingv1.FilterPassed
	notPassed result = eventingv1.FilterNotPassed
	ignored   result = eventingv1.FilterIgnored
	unknown   result = eventingv1.FilterUnknown
)

// explainer collects the decisions of filters about an event.
type explainer struct {
	budget    *filter.Budget
	event     *event.Event
	decisions []eventingv1.FilterDecision
}

// decide adds a decision.
func (x *explainer) decide(path *field.Path, r result, reason string) {
	x.decisions = append(x.decisions, eventingv1.FilterDecision{Field: path.String(), Result: string(r), Reason: reason})
}

// filter adds the decisions of a filter and of all within it, and returns its own.
func (x *explainer) filter(path *field.Path, f *eventingv1.SubscriptionsAPIFilter) result {
	if len(streams.FiltersOf([]eventingv1.SubscriptionsAPIFilter{*f})) == 0 {
		x.decide(path, ignored, "has no dialect")
		return ignored
	}
	values := func(name string, compared map[string]string, filter func(map[string]string) eventing.Filter) result {
		return x.attributes(path.Child(name), compared, func(one map[string]string) (map[string]string, []eventing.Filter) {
			return nil, []eventing.Filter{filter(one)}
		})
	}
	switch {
	case len(f.All) > 0:
		return x.within(path.Child("all"), func(own *eventingv1.FilterDecision) result {
			r, _ := x.list(path.Child("all"), f.All, notPassed)
			if r == notPassed {
				own.Reason = "has a filter that does not pass the event"
			}
			return r
		})
	case len(f.Any) > 0:
		return x.within(path.Child("any"), func(own *eventingv1.FilterDecision) result {
			r, n := x.list(path.Child("any"), f.Any, passed)
			if r == notPassed {
				own.Reason = fmt.Sprintf("has %d filters, none of which passes the event", n)
			}
			return r
		})
	case f.Not != nil:
		return x.within(path.Child("not"), func(own *eventingv1.FilterDecision) result {
			switch x.filter(path.Child("not"), f.Not) {
			case passed:
				own.Reason = "has a filter that passes the event"
				return notPassed
			case notPassed:
				return passed
			}
			return unknown
		})
	case f.CESQL != "":
		return x.leaf(path.Child("cesql"), nil, []eventing.Filter{{CESQL: f.CESQL}})
	case len(f.Exact) > 0:
		return values("exact", f.Exact, func(one map[string]string) eventing.Filter { return eventing.Filter{Exact: one} })
	case len(f.Prefix) > 0:
		return values("prefix", f.Prefix, func(one map[string]string) eventing.Filter { return eventing.Filter{Prefix: one} })
	default:
		return values("suffix", f.Suffix, func(one map[string]string) eventing.Filter { return eventing.Filter{Suffix: one} })
	}
}

// within adds a decision before those that do adds, and sets it to what do returns.
func (x *explainer) within(path *field.Path, do func(own *eventingv1.FilterDecision) result) result {
	own := eventingv1.FilterDecision{Field: path.String()}
	at := len(x.decisions)
	x.decisions = append(x.decisions, own)
	r := do(&own)
	if own.Result = string(r); r == unknown {
		own.Reason = "has a filter whose result is unknown"
	}
	x.decisions[at] = own
	return r
}

// list adds the decisions of filters. It returns decisive if one of those that are not ignored does, and their number.
func (x *explainer) list(path *field.Path, filters []eventingv1.SubscriptionsAPIFilter, decisive result) (r result, n int) {
	results := map[result]int{}
	for i := range filters {
		results[x.filter(path.Index(i), &filters[i])]++
	}
	n = len(filters) - results[ignored]
	switch {
	case results[decisive] > 0:
		return decisive, n
	case results[unknown] > 0:
		return unknown, n
	case decisive == passed:
		return notPassed, n
	}
	return passed, n
}

// attributes adds the decision about each compared attribute.
func (x *explainer) attributes(path *field.Path, compared map[string]string, filter func(one map[string]string) (map[string]string, []eventing.Filter)) result {
	all := passed
	for _, name := range slices.Sorted(maps.Keys(compared)) {
		attributes, filters := filter(map[string]string{name: compared[name]})
		switch r := x.leaf(path.Child(name), attributes, filters); {
		case r == notPassed, r == unknown && all == passed:
			all = r
		}
	}
	return all
}

// leaf adds the decision of a filter without others within it.
func (x *explainer) leaf(path *field.Path, attributes map[string]string, filters []eventing.Filter) result {
	r, reason := notPassed, ""
	switch explained := filter.Explain(x.budget, attributes, filters, x.event); {
	case explained.Passed:
		r = passed
	case explained.Unknown:
		r, reason = unknown, explained.Reason
	default:
		reason = explained.Reason
	}
	x.decide(path, r, reason)
	return r
}
