package streams

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestFiltersOf covers each dialect, and filters without one, which are ignored.
func TestFiltersOf(t *testing.T) {
	type list = []eventingv1.SubscriptionsAPIFilter
	none, a, b := eventingv1.SubscriptionsAPIFilter{}, map[string]string{"type": "a"}, map[string]string{"type": ""}
	exact := eventingv1.SubscriptionsAPIFilter{Exact: a}
	for name, test := range map[string]struct {
		filters list
		want    []eventing.Filter
	}{
		"none": {},
		"dialects": {
			list{exact, {Prefix: b}, {Suffix: a}, {CESQL: "TRUE"}, {All: list{exact}}, {Any: list{exact}}, {Not: &exact}},
			[]eventing.Filter{
				{Exact: a}, {Prefix: b}, {Suffix: a}, {CESQL: "TRUE"}, {All: []eventing.Filter{{Exact: a}}}, {Any: []eventing.Filter{{Exact: a}}},
				{Not: &eventing.Filter{Exact: a}},
			},
		},
		"without dialect":        {list{none, {All: list{}}, {Exact: map[string]string{}}}, nil},
		"one without dialect":    {list{none, exact, none}, []eventing.Filter{{Exact: a}}},
		"nested without dialect": {list{{Any: list{none, exact}}}, []eventing.Filter{{Any: []eventing.Filter{{Exact: a}}}}},
		"only nested without":    {list{{Any: list{none}}, {All: list{{Not: &none}}}, {Not: &eventingv1.SubscriptionsAPIFilter{Any: list{none}}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, FiltersOf(test.filters)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestPartitionLimit checks that the data plane has as many partitions as the API allows.
func TestPartitionLimit(t *testing.T) {
	if eventing.MaxPartitions != eventingv1.MaxBrokerPartitions {
		t.Errorf("the data plane has %d partitions, the API allows %d", eventing.MaxPartitions, eventingv1.MaxBrokerPartitions)
	}
}
