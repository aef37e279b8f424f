package v1

import (
	"fmt"
	"maps"
	"net/url"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BrokerTailOptions are the query parameters of the subresource tail of a Broker.
type BrokerTailOptions struct {
	metav1.TypeMeta `json:",inline"`

	// Filter is a CloudEvents SQL expression; only events for which it is true are shown. Optional; defaults to all events.
	// +optional
	Filter string `json:"filter,omitempty"`

	// Data adds the data of events, which needs the permission get for brokers/data. Optional; defaults to false.
	// +optional
	Data bool `json:"data,omitempty"`
}

// SwaggerDoc describes the parameters.
func (BrokerTailOptions) SwaggerDoc() map[string]string {
	return map[string]string{
		"filter": "CloudEvents SQL expression; only events for which it is true are shown. Defaults to all events.",
		"data":   "If true, the data of events is shown too, which needs the permission get for brokers/data. Defaults to false.",
	}
}

// convertTailParameters parses the parameters of a request. It rejects unknown ones, because a misspelt parameter would change the meaning
// of the request.
func convertTailParameters(in *url.Values, out *BrokerTailOptions, _ conversion.Scope) error {
	for _, name := range slices.Sorted(maps.Keys(*in)) {
		values := (*in)[name]
		switch {
		case name == "pretty" || name == "timeout":
			// These parameters concern the request, not the tail.
			continue
		case name != "filter" && name != "data":
			return fmt.Errorf("unknown parameter '%.100s'; valid parameters are filter, data", name)
		case len(values) != 1:
			return fmt.Errorf("parameter '%s' must be set only once", name)
		case name == "filter":
			out.Filter = values[0]
		case values[0] != "true" && values[0] != "false":
			return fmt.Errorf("parameter 'data' must be 'true' or 'false', not '%.100s'", values[0])
		default:
			out.Data = values[0] == "true"
		}
	}
	filters := []SubscriptionsAPIFilter{{CESQL: out.Filter}}
	if errs := ValidatePolicyFilters(filters, field.NewPath("filters")); len(errs) > 0 {
		return fmt.Errorf("parameter 'filter' %s", errs[0].Detail)
	}
	return nil
}

// addTailOptions registers BrokerTailOptions.
func addTailOptions(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion, &BrokerTailOptions{})
	return scheme.AddConversionFunc((*url.Values)(nil), (*BrokerTailOptions)(nil), func(a, b any, scope conversion.Scope) error {
		return convertTailParameters(a.(*url.Values), b.(*BrokerTailOptions), scope)
	})
}
