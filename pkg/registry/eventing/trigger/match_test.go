package trigger

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// oneTrigger is a store of one Trigger.
type oneTrigger struct{}

func (oneTrigger) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name != "bill" {
		return nil, apierrors.NewNotFound(eventingv1.Resource("triggers"), name)
	}
	return &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}, nil
}

// matcher rejects the event "bad".
type matcher struct{}

func (matcher) Match(_ context.Context, _ *eventingv1.Trigger, event []byte) (*eventingv1.TriggerMatchStatus, error) {
	if string(event) == `"bad"` {
		return nil, errors.New("attribute 'id' must be given")
	}
	return &eventingv1.TriggerMatchStatus{Reason: "too small", Filters: []eventingv1.FilterDecision{{Field: "spec.filters[0].cesql", Result: eventingv1.FilterNotPassed, Reason: "small"}}}, nil
}

func (matcher) ToJSON(http.Header, []byte) ([]byte, error) { return nil, nil }

// Unmatched knows 7 events that do not match, unless the Trigger is labeled.
func (matcher) Unmatched(_ context.Context, t *eventingv1.Trigger) int {
	if t.Labels != nil {
		return 0
	}
	return 7
}

// TestObserve warns about new and changed filters that no recent event passes.
func TestObserve(t *testing.T) {
	exact := &eventingv1.Trigger{Spec: eventingv1.TriggerSpec{Broker: "orders", Filter: &eventingv1.TriggerFilter{Attributes: map[string]string{"type": "a"}}}}
	cesql := &eventingv1.Trigger{Spec: eventingv1.TriggerSpec{Broker: "orders", Filters: []eventingv1.SubscriptionsAPIFilter{{CESQL: "FALSE"}}}}
	passing := cesql.DeepCopy()
	passing.Labels = map[string]string{"passing": "true"}
	late := &LateMatcher{}
	if got := observe(t.Context(), late, exact, nil); got != nil {
		t.Errorf("without a matcher: %q", got)
	}
	late.Set(matcher{})
	for name, test := range map[string]struct {
		trigger, old *eventingv1.Trigger
		want         []string
	}{
		"new":     {exact, nil, []string{"spec.filter: 0 of the last 7 events of the Broker 'orders' would match"}},
		"changed": {cesql, exact, []string{"spec.filters: 0 of the last 7 events of the Broker 'orders' would match"}},
		"same":    {cesql, cesql.DeepCopy(), nil},
		"passing": {passing, nil, nil},
	} {
		if got := observe(t.Context(), late, test.trigger, test.old); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestMatch checks the answer, its table, and the errors of requests.
func TestMatch(t *testing.T) {
	late := &LateMatcher{}
	rest := NewMatch(oneTrigger{}, late).(*matchREST)
	create := func(name, event string) (*eventingv1.TriggerMatch, error) {
		obj, err := rest.Create(t.Context(), name, &eventingv1.TriggerMatch{Spec: eventingv1.TriggerMatchSpec{Event: runtime.RawExtension{Raw: []byte(event)}}}, nil, nil)
		if err != nil {
			return nil, err
		}
		return obj.(*eventingv1.TriggerMatch), nil
	}
	if _, err := create("bill", "{}"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without a matcher: %v", err)
	}
	late.Set(matcher{})
	if _, err := create("none", "{}"); !apierrors.IsNotFound(err) {
		t.Errorf("without a Trigger: %v", err)
	}
	for event, want := range map[string]string{
		"":      "spec.event: Required value: must be a CloudEvent in the JSON format",
		"null":  "spec.event: Required value: must be a CloudEvent in the JSON format",
		`"bad"`: "spec.event: Invalid value: attribute 'id' must be given",
	} {
		if _, err := create("bill", event); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("event %s: %v, want %s", event, err, want)
		}
	}
	if _, err := rest.Create(t.Context(), "bill", &eventingv1.TriggerMatch{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, nil, nil); !apierrors.IsBadRequest(err) {
		t.Errorf("with another name: %v", err)
	}
	if _, err := rest.Create(t.Context(), "bill", &eventingv1.Trigger{}, nil, nil); !apierrors.IsInternalError(err) {
		t.Errorf("with another kind: %v", err)
	}
	match, err := create("bill", "{}")
	if err != nil || match.Name != "bill" || match.Namespace != "shop" || match.Status.Reason != "too small" {
		t.Fatalf("got %+v, %v", match, err)
	}
	table, err := rest.ConvertToTable(t.Context(), match, nil)
	if err != nil || len(table.Rows) != 2 || len(table.ColumnDefinitions) != 3 {
		t.Fatalf("got %+v, %v", table, err)
	}
	for i, want := range [][]any{{"Trigger shop/bill", "NotPassed", "too small"}, {"spec.filters[0].cesql", "NotPassed", "small"}} {
		if !slices.Equal(table.Rows[i].Cells, want) {
			t.Errorf("row %d is %v, want %v", i, table.Rows[i].Cells, want)
		}
	}
	match.Status.Matched = true
	if table, err := rest.ConvertToTable(t.Context(), match, &metav1.TableOptions{NoHeaders: true}); err != nil || table.ColumnDefinitions != nil || table.Rows[0].Cells[1] != "Passed" {
		t.Errorf("without headers: %+v, %v", table, err)
	}
	if _, err := rest.ConvertToTable(t.Context(), &eventingv1.Trigger{}, nil); err == nil {
		t.Error("converted another kind")
	}
}
