package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Trigger subscribes a destination to the events of a Broker that pass its filter (eventing Trigger
// Lifecycle).
type Trigger struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	// +optional
	Spec TriggerSpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the Trigger itself is written.
	// +optional
	Status TriggerStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// TriggerList is a list of Triggers.
type TriggerList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Triggers.
	Items []Trigger `json:"items"`
}

// BrokerLabelKey on a Trigger is the name of its Broker. The server sets it.
const BrokerLabelKey = GroupName + "/broker"

// TriggerSpec is the desired state of a Trigger.
type TriggerSpec struct {
	// Broker is the name of the Broker, in the same namespace, whose events are filtered. Required unless brokerRef is
	// set, immutable.
	Broker string `json:"broker,omitempty"`

	// BrokerRef refers to the Broker whose events are filtered, which may be in another namespace. Users need the
	// permission knsubscribe for a Broker of another namespace. Replaces broker; requires that
	// cross-namespace-event-links is enabled.
	// +optional
	BrokerRef *duckv1.KReference `json:"brokerRef,omitempty"`

	// Filter selects events by the exact values of their attributes. Optional; defaults to {}, which matches
	// every event. Overridden by filters.
	// +optional
	Filter *TriggerFilter `json:"filter,omitempty"`

	// Filters select events with the dialects of the CloudEvents Subscriptions API; an event must match all of
	// them. Optional; if set, filter is ignored.
	// +optional
	// +listType=atomic
	Filters []SubscriptionsAPIFilter `json:"filters,omitempty"`

	// Subscriber is the destination of matching events. Required.
	Subscriber duckv1.Destination `json:"subscriber"`

	// Delivery contains the delivery options of this Trigger, which replace the Broker's as a whole. Optional;
	// defaults to the Broker's.
	// +optional
	Delivery *duckv1.DeliverySpec `json:"delivery,omitempty"`
}

// TriggerFilter selects events by their attributes (eventing TriggerFilter).
type TriggerFilter struct {
	// Attributes maps attribute names (lower-case letters and digits) to the required values; the
	// empty string only requires that the attribute exists. Optional; without it every event matches.
	// +optional
	Attributes map[string]string `json:"attributes,omitempty"`
}

// SubscriptionsAPIFilter is one filter expression: exactly one of its dialects is set.
type SubscriptionsAPIFilter struct {
	// All matches events that match every one of these filters.
	// +optional
	// +listType=atomic
	All []SubscriptionsAPIFilter `json:"all,omitempty"`

	// Any matches events that match at least one of these filters.
	// +optional
	// +listType=atomic
	Any []SubscriptionsAPIFilter `json:"any,omitempty"`

	// Not matches events that do not match this filter.
	// +optional
	Not *SubscriptionsAPIFilter `json:"not,omitempty"`

	// Exact matches events whose attributes have exactly these values.
	// +optional
	Exact map[string]string `json:"exact,omitempty"`

	// Prefix matches events whose attributes start with these values.
	// +optional
	Prefix map[string]string `json:"prefix,omitempty"`

	// Suffix matches events whose attributes end with these values.
	// +optional
	Suffix map[string]string `json:"suffix,omitempty"`

	// CESQL matches events for which this CloudEvents SQL expression is true.
	// +optional
	CESQL string `json:"cesql,omitempty"`
}

// TriggerStatus is the observed state of a Trigger.
type TriggerStatus struct {
	duckv1.Status `json:",inline"`

	// SubscriberURI is the resolved URL of spec.subscriber.
	// +optional
	SubscriberURI string `json:"subscriberUri,omitempty"`

	// SubscriberCACerts are the PEM certificates to trust when subscriberUri is https.
	// +optional
	SubscriberCACerts *string `json:"subscriberCACerts,omitempty"`

	// SubscriberAudience is the OIDC audience of the subscriber.
	// +optional
	SubscriberAudience *string `json:"subscriberAudience,omitempty"`

	duckv1.DeliveryStatus `json:",inline"`

	duckv1.AuthStatus `json:",inline"`
}
