package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Channel accepts CloudEvents at its address, keeps them, and forwards each to all of its Subscriptions
// (eventing Channel Lifecycle).
type Channel struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	// +optional
	Spec ChannelSpec `json:"spec,omitempty"`

	// Status is what controllers observed. Ignored when the Channel itself is written.
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
	// ChannelKindInMemory is the template kind of a channel kept in memory.
	ChannelKindInMemory = "InMemoryChannel"
)

// ChannelSpec is the desired state of a Channel.
type ChannelSpec struct {
	// ChannelTemplate chooses the implementation and its parameters. Immutable. Optional; defaults to
	// apiVersion messaging.knative.dev/v1, kind JetStreamChannel.
	// +optional
	ChannelTemplate *ChannelTemplateSpec `json:"channelTemplate,omitempty"`

	// Subscribers are the Subscriptions of this channel, resolved. Written by the controllers alone.
	// +optional
	// +patchMergeKey=uid
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=uid
	Subscribers []duckv1.SubscriberSpec `json:"subscribers,omitempty" patchStrategy:"merge" patchMergeKey:"uid"`

	// Delivery holds the delivery options of Subscriptions that have none of their own. Optional.
	// +optional
	Delivery *duckv1.DeliverySpec `json:"delivery,omitempty"`
}

// ChannelTemplateSpec names a channel implementation by apiVersion and kind.
type ChannelTemplateSpec struct {
	metav1.TypeMeta `json:",inline"`

	// Spec holds parameters of the implementation, passed on as they are. Optional.
	// +optional
	Spec *runtime.RawExtension `json:"spec,omitempty"`
}

// ChannelStatus is what controllers observed of a Channel.
type ChannelStatus struct {
	duckv1.Status        `json:",inline"`
	duckv1.AddressStatus `json:",inline"`

	// Subscribers tell for each of spec.subscribers whether events are delivered to it.
	// +optional
	// +patchMergeKey=uid
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=uid
	Subscribers []duckv1.SubscriberStatus `json:"subscribers,omitempty" patchStrategy:"merge" patchMergeKey:"uid"`

	duckv1.DeliveryStatus `json:",inline"`

	// Channel is the object that implements the Channel, for templates of kinds that other controllers serve.
	// +optional
	Channel *duckv1.KReference `json:"channel,omitempty"`
}
