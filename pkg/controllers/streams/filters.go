package streams

import (
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// FiltersOf returns filters in the form of the data plane. As in Knative's releases, a filter without a dialect is ignored, at any depth,
// as is a filter whose nested filters are all ignored.
func FiltersOf(filters []eventingv1.SubscriptionsAPIFilter) []eventing.Filter {
	var converted []eventing.Filter
	for i := range filters {
		if filter, ok := filterOf(&filters[i]); ok {
			converted = append(converted, filter)
		}
	}
	return converted
}

// filterOf returns a filter in the form of the data plane. ok is false for an ignored one.
func filterOf(f *eventingv1.SubscriptionsAPIFilter) (converted eventing.Filter, ok bool) {
	converted = eventing.Filter{
		All: FiltersOf(f.All), Any: FiltersOf(f.Any), Exact: f.Exact, Prefix: f.Prefix, Suffix: f.Suffix, CESQL: f.CESQL,
	}
	if f.Not != nil {
		if negated, ok := filterOf(f.Not); ok {
			converted.Not = &negated
		}
	}
	return converted, converted.Not != nil || converted.CESQL != "" ||
		len(converted.All)+len(converted.Any)+len(converted.Exact)+len(converted.Prefix)+len(converted.Suffix) > 0
}
