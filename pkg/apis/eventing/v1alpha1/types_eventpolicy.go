package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EventPolicy allows senders to send events to Brokers and Channels of its namespace. Once a Broker or Channel has a ready EventPolicy,
// its EventPolicies decide who may send events to it. They take effect while the feature authentication-oidc is enabled.
type EventPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	// +optional
	Spec EventPolicySpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the EventPolicy itself is written.
	// +optional
	Status EventPolicyStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EventPolicyList is a list of EventPolicies.
type EventPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the EventPolicies.
	Items []EventPolicy `json:"items"`
}

// EventPolicySpec is the desired state of an EventPolicy.
type EventPolicySpec struct {
	// To are the objects that the senders may send events to. Optional; defaults to all objects of the namespace.
	// +optional
	// +listType=atomic
	To []EventPolicySpecTo `json:"to,omitempty"`

	// From are the senders. Without senders, no user may send events.
	// +optional
	// +listType=atomic
	From []EventPolicySpecFrom `json:"from,omitempty"`

	// Filters restrict the events that the senders may send, with the dialects of the CloudEvents Subscriptions API; an event must match
	// all of them. Optional; without filters all events are allowed.
	// +optional
	// +listType=atomic
	Filters []eventingv1.SubscriptionsAPIFilter `json:"filters,omitempty"`
}

// EventPolicySpecTo selects objects that events may be sent to: exactly one of ref and selector is set.
type EventPolicySpecTo struct {
	// Ref is an object in the namespace of the EventPolicy.
	// +optional
	Ref *EventPolicyToReference `json:"ref,omitempty"`

	// Selector selects objects of a kind by their labels.
	// +optional
	Selector *EventPolicySelector `json:"selector,omitempty"`
}

// EventPolicyToReference refers to an object in the namespace of the EventPolicy.
type EventPolicyToReference struct {
	// APIVersion is the API group and version of the object. The version has no effect. Required.
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind is the kind of the object. Required.
	Kind string `json:"kind,omitempty"`

	// Name is the name of the object. Required.
	Name string `json:"name,omitempty"`
}

// EventPolicySelector selects objects of a kind by their labels.
type EventPolicySelector struct {
	metav1.LabelSelector `json:",inline"`

	// APIVersion is the API group and version of the objects. The version has no effect.
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind is the kind of the objects.
	// +optional
	Kind string `json:"kind,omitempty"`
}

// EventPolicySpecFrom is one or more senders: exactly one of ref and sub is set.
type EventPolicySpecFrom struct {
	// Ref is an object that sends events, such as a Trigger. The ServiceAccounts in its status.auth are the senders.
	// +optional
	Ref *EventPolicyFromReference `json:"ref,omitempty"`

	// Sub is the name of the sender, as the subject of its token, such as system:serviceaccount:default:orders. A last character * matches
	// any rest of the name.
	// +optional
	Sub *string `json:"sub,omitempty"`
}

// EventPolicyFromReference refers to an object that sends events.
type EventPolicyFromReference struct {
	// APIVersion is the API group and version of the object. Required.
	APIVersion string `json:"apiVersion,omitempty"`

	// Kind is the kind of the object. Required.
	Kind string `json:"kind,omitempty"`

	// Name is the name of the object. Required.
	Name string `json:"name,omitempty"`

	// Namespace is the namespace of the object. Optional; defaults to the namespace of the EventPolicy.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// Conditions of an EventPolicy in addition to Ready, which depends on both.
const (
	// EventPolicyConditionAuthenticationEnabled reports whether senders are authenticated, so that the EventPolicy has an effect.
	EventPolicyConditionAuthenticationEnabled duckv1.ConditionType = "AuthenticationEnabled"
	// EventPolicyConditionSubjectsResolved reports whether all senders in spec.from have names.
	EventPolicyConditionSubjectsResolved duckv1.ConditionType = "SubjectsResolved"
)

// EventPolicyStatus is the observed state of an EventPolicy.
type EventPolicyStatus struct {
	duckv1.Status `json:",inline"`

	// From are the names of the senders in spec.from.
	// +optional
	// +listType=atomic
	From []string `json:"from,omitempty"`
}
