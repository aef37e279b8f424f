package filter

import (
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestExplain names the expression that refuses an event.
func TestExplain(t *testing.T) {
	e := &event.Event{Attributes: []event.Attribute{{Name: event.ID, Value: "1"}, {Name: event.Source, Value: "/shop"}, {Name: event.EventType, Value: "created"}}}
	is := func(value string) eventing.Filter { return eventing.Filter{Exact: map[string]string{"type": value}} }
	for name, test := range map[string]struct {
		attributes map[string]string
		filters    []eventing.Filter
		want       Explanation
	}{
		"none":              {want: Explanation{Passed: true}},
		"passed":            {filters: []eventing.Filter{is("created")}, want: Explanation{Passed: true}},
		"attributes":        {attributes: map[string]string{"id": "", "type": "deleted"}, want: Explanation{Place: "filter.attributes.type", Reason: `must be "deleted", the event has "created"`}},
		"missing attribute": {attributes: map[string]string{"region": ""}, want: Explanation{Place: "filter.attributes.region", Reason: "requires an attribute that the event does not have"}},
		"second":            {filters: []eventing.Filter{is("created"), is("deleted")}, want: Explanation{Place: "filters[1].exact.type", Reason: `must be "deleted", the event has "created"`}},
		"prefix": {filters: []eventing.Filter{{Prefix: map[string]string{"source": "/x"}}},
			want: Explanation{Place: "filters[0].prefix.source", Reason: `must begin with "/x", the event has "/shop"`}},
		"suffix": {filters: []eventing.Filter{{Suffix: map[string]string{"source": "x"}}},
			want: Explanation{Place: "filters[0].suffix.source", Reason: `must end with "x", the event has "/shop"`}},
		"specversion": {filters: []eventing.Filter{{Exact: map[string]string{"specversion": "0.3"}}},
			want: Explanation{Place: "filters[0].exact.specversion", Reason: `must be "0.3", the event has "1.0"`}},
		"all": {filters: []eventing.Filter{{All: []eventing.Filter{is("created"), {All: []eventing.Filter{is("deleted")}}}}},
			want: Explanation{Place: "filters[0].all[1].all[0].exact.type", Reason: `must be "deleted", the event has "created"`}},
		"any": {filters: []eventing.Filter{{Any: []eventing.Filter{is("a"), is("b")}}},
			want: Explanation{Place: "filters[0].any", Reason: "has 2 filters, none of which passes the event"}},
		"any of one": {filters: []eventing.Filter{{Any: []eventing.Filter{is("a")}}},
			want: Explanation{Place: "filters[0].any[0].exact.type", Reason: `must be "a", the event has "created"`}},
		"not": {filters: []eventing.Filter{{Not: &eventing.Filter{Exact: map[string]string{"type": "created"}}}},
			want: Explanation{Place: "filters[0].not", Reason: "has a filter that passes the event"}},
		"cesql": {filters: []eventing.Filter{{CESQL: "type = 'deleted'"}},
			want: Explanation{Place: "filters[0].cesql", Reason: "is not true: type = 'deleted'"}},
		"invalid": {filters: []eventing.Filter{{}}, want: Explanation{Reason: "is invalid: filters[0]: must have exactly one dialect", Unknown: true}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Explain(NewBudget(t.Context()), test.attributes, test.filters, e); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
