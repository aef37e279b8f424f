package v1alpha1

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// DeadLetter is an event that could not be delivered to the subscriber of a Trigger or Subscription without a dead letter sink. Dead
// letters are read-only: they can be listed, read and deleted. The server deletes them when they are too old, when its dead letter store is full,
// the oldest first, and with their Trigger or Subscription.
type DeadLetter struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The name identifies the dead letter in its namespace, creationTimestamp is the time at which it was stored.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Consumer is the Trigger or Subscription.
	Consumer DeadLetterObject `json:"consumer"`

	// Stream is the Broker or Channel that accepted the event.
	Stream DeadLetterObject `json:"stream"`

	// Subscriber is the URL that did not accept the event, without credentials and query.
	// +optional
	Subscriber string `json:"subscriber,omitempty"`

	// Reason is SubscriberFailed, or ReplyFailed if the event is a reply that was not accepted at the reply address of the Subscription.
	Reason string `json:"reason"`

	// Attempts is the number of attempts to deliver the event. Omitted if it is not known.
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// LastCode is the HTTP status of the last response. Omitted without a response.
	// +optional
	LastCode int32 `json:"lastCode,omitempty"`

	// LastError describes the failure of the last attempt.
	// +optional
	LastError string `json:"lastError,omitempty"`

	// LastResponse is the beginning of the body of the last response, if it is text.
	// +optional
	LastResponse string `json:"lastResponse,omitempty"`

	// AcceptedAt is the time at which the Broker or Channel accepted the event.
	// +optional
	AcceptedAt *metav1.MicroTime `json:"acceptedAt,omitempty"`

	// FailedAt is the time of the last attempt.
	// +optional
	FailedAt *metav1.MicroTime `json:"failedAt,omitempty"`

	// Event is the event.
	Event DeadLetterEvent `json:"event"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// DeadLetterList is a list of dead letters, the oldest of each namespace first. It has at most 500 of them, and about 2 MiB: the others
// follow with the parameter continue.
type DeadLetterList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the dead letters.
	Items []DeadLetter `json:"items"`
}

// The values of DeadLetter.Reason.
const (
	DeadLetterSubscriberFailed = "SubscriberFailed"
	DeadLetterReplyFailed      = "ReplyFailed"
)

// DeadLetterObject is an object in the namespace of the dead letter, or in another one for a stream.
type DeadLetterObject struct {
	// Kind is Broker, Trigger, Channel or Subscription.
	Kind string `json:"kind"`
	// Namespace is the namespace of the object, if the dead letter is in another one.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Name is the name of the object.
	Name string `json:"name"`
	// UID is the UID of the object.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// DeadLetterEvent is a CloudEvent.
type DeadLetterEvent struct {
	// SpecVersion is the attribute specversion.
	SpecVersion string `json:"specVersion"`
	// ID is the attribute id.
	ID string `json:"id"`
	// Source is the attribute source.
	Source string `json:"source"`
	// Type is the attribute type.
	Type string `json:"type"`
	// Attributes are all other attributes, with their values in the canonical text form.
	// +optional
	Attributes map[string]string `json:"attributes,omitempty"`
	// Headers are the HTTP headers that travel with the event, such as traceparent.
	// +optional
	Headers map[string]string `json:"headers,omitempty"`
	// Data is the data byte for byte, if it is text, such as JSON.
	// +optional
	Data string `json:"data,omitempty"`
	// DataBase64 is the data in base64, if it is not text.
	// +optional
	DataBase64 []byte `json:"dataBase64,omitempty"`
}

// The labels of dead letters. Names with more than 63 characters have no label; use field selectors for them.
const (
	DeadLetterBrokerLabel       = "eventing.knative.dev/broker"
	DeadLetterTriggerLabel      = "eventing.knative.dev/trigger"
	DeadLetterChannelLabel      = "messaging.knative.dev/channel"
	DeadLetterSubscriptionLabel = "messaging.knative.dev/subscription"
)

// The fields of dead letters that field selectors may use, besides metadata.name and metadata.namespace.
const (
	DeadLetterConsumerKindField = "consumer.kind"
	DeadLetterConsumerNameField = "consumer.name"
	DeadLetterStreamKindField   = "stream.kind"
	DeadLetterStreamNameField   = "stream.name"
	DeadLetterSubscriberField   = "subscriber"
	DeadLetterReasonField       = "reason"
	DeadLetterLastCodeField     = "lastCode"
	DeadLetterEventIDField      = "event.id"
	DeadLetterEventSourceField  = "event.source"
	DeadLetterEventTypeField    = "event.type"
)

// Fields returns the values of the fields that field selectors may use.
func (d *DeadLetter) Fields() fields.Set {
	return fields.Set{
		"metadata.name": d.Name, "metadata.namespace": d.Namespace,
		DeadLetterConsumerKindField: d.Consumer.Kind, DeadLetterConsumerNameField: d.Consumer.Name,
		DeadLetterStreamKindField: d.Stream.Kind, DeadLetterStreamNameField: d.Stream.Name,
		DeadLetterSubscriberField: d.Subscriber, DeadLetterReasonField: d.Reason, DeadLetterLastCodeField: strconv.Itoa(int(d.LastCode)),
		DeadLetterEventIDField: d.Event.ID, DeadLetterEventSourceField: d.Event.Source, DeadLetterEventTypeField: d.Event.Type,
	}
}

func addFieldSelectors(scheme *runtime.Scheme) error {
	for kind, known := range map[string]fields.Set{"DeadLetter": (&DeadLetter{}).Fields(), "EventMetrics": (&EventMetrics{}).Fields()} {
		err := scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind(kind), func(label, value string) (string, string, error) {
			if !known.Has(label) {
				return "", "", fmt.Errorf("%q is not a known field selector: only %s", label, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
			}
			return label, value, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
