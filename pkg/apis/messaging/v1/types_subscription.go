package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Subscription delivers the events of a channel to a subscriber, and the subscriber's replies to a second
// destination (eventing Subscription Lifecycle).
type Subscription struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	// +optional
	Spec SubscriptionSpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the Subscription itself is written.
	// +optional
	Status SubscriptionStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// SubscriptionList is a list of Subscriptions.
type SubscriptionList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Subscriptions.
	Items []Subscription `json:"items"`
}

// SubscriptionSpec is the desired state of a Subscription. At least one of subscriber and reply is
// required.
type SubscriptionSpec struct {
	// Channel is the channel whose events are delivered, by apiVersion, kind and name. It is in the Subscription's own
	// namespace, unless cross-namespace-event-links is enabled: users then need the permission knsubscribe for a Channel
	// of another namespace. Required, immutable.
	Channel duckv1.KReference `json:"channel"`

	// Subscriber is the destination of events. Optional if reply is set.
	// +optional
	Subscriber *duckv1.Destination `json:"subscriber,omitempty"`

	// Reply is the destination of events in responses of the subscriber. Without a subscriber it receives the
	// channel's events. Optional if subscriber is set.
	// +optional
	Reply *duckv1.Destination `json:"reply,omitempty"`

	// Delivery contains the delivery options. Optional; defaults to the channel's.
	// +optional
	Delivery *duckv1.DeliverySpec `json:"delivery,omitempty"`
}

// SubscriptionStatus is the observed state of a Subscription.
type SubscriptionStatus struct {
	duckv1.Status `json:",inline"`

	// PhysicalSubscription contains the resolved addresses of spec.
	// +optional
	PhysicalSubscription PhysicalSubscriptionStatus `json:"physicalSubscription,omitempty,omitzero"`

	duckv1.AuthStatus `json:",inline"`
}

// PhysicalSubscriptionStatus contains the resolved addresses of a Subscription (eventing
// PhysicalSubscriptionStatus).
type PhysicalSubscriptionStatus struct {
	// SubscriberURI is the resolved URL of spec.subscriber.
	// +optional
	SubscriberURI string `json:"subscriberUri,omitempty"`

	// SubscriberCACerts are the PEM certificates to trust when subscriberUri is https.
	// +optional
	SubscriberCACerts *string `json:"subscriberCACerts,omitempty"`

	// SubscriberAudience is the OIDC audience of the subscriber.
	// +optional
	SubscriberAudience *string `json:"subscriberAudience,omitempty"`

	// ReplyURI is the resolved URL of spec.reply.
	// +optional
	ReplyURI string `json:"replyUri,omitempty"`

	// ReplyCACerts are the PEM certificates to trust when replyUri is https.
	// +optional
	ReplyCACerts *string `json:"replyCACerts,omitempty"`

	// ReplyAudience is the OIDC audience of the reply destination.
	// +optional
	ReplyAudience *string `json:"replyAudience,omitempty"`

	duckv1.DeliveryStatus `json:",inline"`
}
