package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// TriggerMatch asks whether an event passes the filters of a Trigger: the subresource match. It is not stored, and the event is not
// accepted.
type TriggerMatch struct {
	metav1.TypeMeta `json:",inline"`

	// Standard object's metadata: name and namespace of the Trigger.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the event.
	Spec TriggerMatchSpec `json:"spec"`

	// Status is the answer. Ignored in requests.
	// +optional
	Status TriggerMatchStatus `json:"status,omitempty"`
}

// TriggerMatchSpec is the event that the filters decide about.
type TriggerMatchSpec struct {
	// Event is a CloudEvent in the JSON format. Its data may be omitted, because filters do not read it. Required.
	Event runtime.RawExtension `json:"event"`
}

// TriggerMatchStatus is the decision of the filters of a Trigger.
type TriggerMatchStatus struct {
	// Matched is true if the event would be delivered to the subscriber of the Trigger.
	Matched bool `json:"matched"`

	// Reason explains why the event does not match.
	// +optional
	Reason string `json:"reason,omitempty"`

	// Filters are the decisions of all filters, at all depths, and of the attributes that they compare. Each follows the filter that
	// contains it. Empty if the Trigger has no filters.
	// +optional
	// +listType=atomic
	Filters []FilterDecision `json:"filters,omitempty"`
}

// FilterDecision is the decision of one filter, or of one compared attribute.
type FilterDecision struct {
	// Field is the place in the Trigger, such as spec.filters[0].any[1].exact.type.
	Field string `json:"field"`

	// Result is Passed, NotPassed, Ignored for a filter without effect, or Unknown for a filter that takes too long or is invalid. Events do
	// not pass the latter.
	Result string `json:"result"`

	// Reason explains a result other than Passed.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// The values of FilterDecision.Result.
const (
	FilterPassed    = "Passed"
	FilterNotPassed = "NotPassed"
	FilterIgnored   = "Ignored"
	FilterUnknown   = "Unknown"
)
