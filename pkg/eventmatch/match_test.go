package eventmatch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

type filters = []eventingv1.SubscriptionsAPIFilter

const order = `{"specversion":"1.0","id":"1","source":"/shop","type":"order.created","amount":7}`

// decided returns the answer in short form, a line for each decision.
func decided(status *eventingv1.TriggerMatchStatus) []string {
	lines := []string{fmt.Sprintf("%t %s", status.Matched, status.Reason)}
	for _, d := range status.Filters {
		lines = append(lines, strings.TrimSpace(d.Field+" "+d.Result+" "+d.Reason))
	}
	return lines
}

// TestMatch returns the decision of each filter, as the data plane decides (eventing TriggerFilter).
func TestMatch(t *testing.T) {
	exact := func(values ...string) eventingv1.SubscriptionsAPIFilter {
		f := eventingv1.SubscriptionsAPIFilter{Exact: map[string]string{}}
		for i := 0; i < len(values); i += 2 {
			f.Exact[values[i]] = values[i+1]
		}
		return f
	}
	for name, test := range map[string]struct {
		spec eventingv1.TriggerSpec
		want []string
	}{
		"no filters": {want: []string{"true "}},
		"attributes": {
			spec: eventingv1.TriggerSpec{Filter: &eventingv1.TriggerFilter{Attributes: map[string]string{"source": "", "type": "other", "region": ""}}},
			want: []string{
				"false spec.filter.attributes.region requires an attribute that the event does not have",
				"spec.filter.attributes.region NotPassed requires an attribute that the event does not have",
				"spec.filter.attributes.source Passed",
				`spec.filter.attributes.type NotPassed must be "other", the event has "order.created"`,
			},
		},
		"overridden": {
			spec: eventingv1.TriggerSpec{
				Filter:  &eventingv1.TriggerFilter{Attributes: map[string]string{"type": "other"}},
				Filters: filters{{Prefix: map[string]string{"type": "order."}}, {}},
			},
			want: []string{
				"true ", "spec.filters[0].prefix.type Passed", "spec.filters[1] Ignored has no dialect",
				"spec.filter.attributes Ignored spec.filters overrides it",
			},
		},
		"nested": {
			spec: eventingv1.TriggerSpec{Filters: filters{
				{Any: filters{exact("type", "other"), {CESQL: "amount > 5"}}},
				{All: filters{{Suffix: map[string]string{"type": ".created"}}, {Not: &eventingv1.SubscriptionsAPIFilter{Exact: map[string]string{"source": "/shop"}}}}},
				{Any: filters{exact("type", "a"), exact("type", "b")}},
				{CESQL: "amount > 50"},
			}},
			want: []string{
				"false spec.filters[1].all[1].not has a filter that passes the event",
				"spec.filters[0].any Passed",
				`spec.filters[0].any[0].exact.type NotPassed must be "other", the event has "order.created"`,
				"spec.filters[0].any[1].cesql Passed",
				"spec.filters[1].all NotPassed has a filter that does not pass the event",
				"spec.filters[1].all[0].suffix.type Passed",
				"spec.filters[1].all[1].not NotPassed has a filter that passes the event",
				"spec.filters[1].all[1].not.exact.source Passed",
				"spec.filters[2].any NotPassed has 2 filters, none of which passes the event",
				`spec.filters[2].any[0].exact.type NotPassed must be "a", the event has "order.created"`,
				`spec.filters[2].any[1].exact.type NotPassed must be "b", the event has "order.created"`,
				"spec.filters[3].cesql NotPassed is not true: amount > 50",
			},
		},
		"invalid": {
			spec: eventingv1.TriggerSpec{Filters: filters{{All: filters{{CESQL: "("}}}}},
			want: []string{
				"false the filters are invalid: filters[0]: all[0]: cesql: syntax error",
				"spec.filters[0].all Unknown has a filter whose result is unknown",
				"spec.filters[0].all[0].cesql Unknown is invalid: filters[0]: cesql: syntax error",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			status, err := (&Matcher{}).Match(t.Context(), &eventingv1.Trigger{Spec: test.spec}, []byte(order))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, decided(status)); diff != "" {
				t.Errorf("decisions (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExpensive returns that the result of filters is unknown if they exceed the budget.
func TestExpensive(t *testing.T) {
	event := `{"specversion":"1.0","id":"1","source":"/","type":"t","long":"` + strings.Repeat("a", 60<<10) + `"}`
	expensive := "long LIKE '%" + strings.Repeat("a", 3900) + "_b%'"
	status, err := (&Matcher{}).Match(t.Context(), &eventingv1.Trigger{Spec: eventingv1.TriggerSpec{Filters: filters{{CESQL: expensive}}}}, []byte(event))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"false the filters take too long to evaluate; such events are not delivered", "spec.filters[0].cesql Unknown takes too long to evaluate"}
	if diff := cmp.Diff(want, decided(status)); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Matcher{}).Match(ctx, &eventingv1.Trigger{}, []byte(order)); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled request: %v", err)
	}
}

// TestToJSON reads events in all modes, and names the wrong attribute of others.
func TestToJSON(t *testing.T) {
	header := func(fields ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(fields); i += 2 {
			h.Add(fields[i], fields[i+1])
		}
		return h
	}
	binary := []string{"Ce-Specversion", "1.0", "Ce-Id", "a b", "Ce-Source", "/s", "Ce-Type", "t", "Content-Type", "text/plain"}
	for name, test := range map[string]struct {
		header     http.Header
		body, want string
	}{
		"binary": {header(binary...), "data", `{"specversion":"1.0","datacontenttype":"text/plain","id":"a b","source":"/s","type":"t"}`},
		"structured": {header("Content-Type", "application/cloudevents+json"), `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1}}`,
			`{"specversion":"1.0","id":"1","source":"/s","type":"t"}`},
		"batch": {header("Content-Type", "application/cloudevents-batch+json"), "[" + order + "," + order + "]", "error must be one event, not a batch of 2"},
		"empty": {header("Content-Type", "application/cloudevents-batch+json"), "[]", "error must be one event, not a batch of 0"},
		"time": {header(append(binary, "Ce-Time", "yesterday")...), "",
			`error is not a CloudEvent: attribute 'time' must be a timestamp by RFC 3339, not "yesterday"`},
		"missing":   {header("Content-Type", "application/cloudevents+json"), `{"specversion":"1.0","id":"1","source":"/s"}`, "error is not a CloudEvent: attribute 'type' must be given"},
		"malformed": {header("Content-Type", "application/cloudevents+json"), `{`, "error is not a CloudEvent: "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := (&Matcher{}).ToJSON(test.header, []byte(test.body))
			text := string(got)
			if err != nil {
				text = "error " + err.Error()
			}
			if !strings.HasPrefix(text, test.want) {
				t.Errorf("got %s, want %s", text, test.want)
			}
		})
	}
}
