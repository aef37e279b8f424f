package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Channel accepts CloudEvents at its address, persists them, and forwards each to all of its Subscriptions
// (eventing Channel Lifecycle).
type Channel struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	// +optional
	Spec ChannelSpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the Channel itself is written.
	// +optional
	Status ChannelStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// ChannelList is a list of Channels.
type ChannelList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Channels.
	Items []Channel `json:"items"`
}

const (
	// ChannelKindJetStream is the template kind of a durable channel, and the default.
	ChannelKindJetStream = "JetStreamChannel"
	// ChannelKindInMemory is the template kind of an in-memory channel.
	ChannelKindInMemory = "InMemoryChannel"
)

// ChannelSpec is the desired state of a Channel.
type ChannelSpec struct {
	// ChannelTemplate selects the implementation and its parameters. Immutable. Optional; defaults to
	// apiVersion messaging.knative.dev/v1, kind JetStreamChannel.
	// +optional
	ChannelTemplate *ChannelTemplateSpec `json:"channelTemplate,omitempty"`

	// Subscribers are the resolved Subscriptions of this channel. Only controllers write them.
	// +optional
	// +patchMergeKey=uid
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=uid
	Subscribers []duckv1.SubscriberSpec `json:"subscribers,omitempty" patchStrategy:"merge" patchMergeKey:"uid"`

	// Delivery contains the delivery options of Subscriptions without their own. Optional.
	// +optional
	Delivery *duckv1.DeliverySpec `json:"delivery,omitempty"`
}

// ChannelTemplateSpec identifies a channel implementation by apiVersion and kind.
type ChannelTemplateSpec struct {
	metav1.TypeMeta `json:",inline"`

	// Spec contains parameters of the implementation, passed on unchanged. Optional.
	// +optional
	Spec *runtime.RawExtension `json:"spec,omitempty"`
}

// ChannelStatus is the observed state of a Channel.
type ChannelStatus struct {
	duckv1.Status        `json:",inline"`
	duckv1.AddressStatus `json:",inline"`

	// Subscribers report for each of spec.subscribers whether events are delivered to it.
	// +optional
	// +patchMergeKey=uid
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=uid
	Subscribers []duckv1.SubscriberStatus `json:"subscribers,omitempty" patchStrategy:"merge" patchMergeKey:"uid"`

	duckv1.DeliveryStatus `json:",inline"`

	duckv1.AppliedEventPoliciesStatus `json:",inline"`

	// Channel is the object that implements the Channel, for template kinds of other controllers.
	// +optional
	Channel *duckv1.KReference `json:"channel,omitempty"`
}
