package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Broker accepts CloudEvents at its address, persists them, and forwards each to the subscribers of the
// Triggers that match it (eventing Broker Lifecycle). The annotation eventing.knative.dev/broker.class
// selects the implementation; it defaults to JetStreamBroker and is immutable.
type Broker struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state.
	// +optional
	Spec BrokerSpec `json:"spec,omitempty"`

	// Status is the state observed by controllers. Ignored when the Broker itself is written.
	// +optional
	Status BrokerStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// BrokerList is a list of Brokers.
type BrokerList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the Brokers.
	Items []Broker `json:"items"`
}

const (
	// BrokerClassAnnotationKey selects the implementation of a Broker.
	BrokerClassAnnotationKey = GroupName + "/broker.class"
	// BrokerClassJetStream is the class implemented by this server, and the default.
	BrokerClassJetStream = "JetStreamBroker"
	// BrokerClassMTChannelBased is accepted as an alias of BrokerClassJetStream.
	BrokerClassMTChannelBased = "MTChannelBasedBroker"
)

// BrokerConditionArchiveReady reports whether the accepted events of a Broker are archived. Its severity is Warning, so that Ready does not depend
// on it. It is absent if the ConfigMap of spec.config does not ask for an archive.
const BrokerConditionArchiveReady duckv1.ConditionType = "ArchiveReady"

// BrokerReasonArchiveDisabled is the reason of BrokerConditionArchiveReady if the operator disabled archives.
const BrokerReasonArchiveDisabled = "ArchiveDisabled"

// BrokerSpec is the desired state of a Broker.
type BrokerSpec struct {
	// Config refers to an object with the options of the Broker's implementation, for instance a
	// ConfigMap. Immutable. Optional; defaults to an empty reference, which means the system's options.
	// +optional
	Config *duckv1.KReference `json:"config,omitempty"`

	// Delivery contains the delivery options of Triggers without their own. Optional.
	// +optional
	Delivery *duckv1.DeliverySpec `json:"delivery,omitempty"`
}

// BrokerStatus is the observed state of a Broker.
type BrokerStatus struct {
	duckv1.Status                     `json:",inline"`
	duckv1.AddressStatus              `json:",inline"`
	duckv1.DeliveryStatus             `json:",inline"`
	duckv1.AppliedEventPoliciesStatus `json:",inline"`
}

// IsForeign reports whether the class of the Broker belongs to another implementation than this server's.
func (b *Broker) IsForeign() bool {
	switch b.Annotations[BrokerClassAnnotationKey] {
	case "", BrokerClassJetStream, BrokerClassMTChannelBased:
		return false
	default:
		return true
	}
}
