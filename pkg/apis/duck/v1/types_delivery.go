package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// BackoffPolicyType is the growth of the delay between delivery attempts.
//
// +enum
type BackoffPolicyType string

const (
	// BackoffPolicyLinear waits the same backoffDelay before each retry.
	BackoffPolicyLinear BackoffPolicyType = "linear"
	// BackoffPolicyExponential waits backoffDelay x 2^n before retry n, counted from zero.
	BackoffPolicyExponential BackoffPolicyType = "exponential"
)

// FormatType is the CloudEvents content type of an outgoing event.
//
// +enum
type FormatType string

const (
	// FormatJSON sends events in structured mode, as application/cloudevents+json.
	FormatJSON FormatType = "json"
	// FormatBinary sends events in binary mode: attributes as headers, data as body.
	FormatBinary FormatType = "binary"
)

// DeliverySpec holds the options of event delivery (eventing DeliverySpec).
type DeliverySpec struct {
	// DeadLetterSink receives events that could not be delivered. Optional; without one such events are DeadLetters in the
	// dead letter store.
	// +optional
	DeadLetterSink *Destination `json:"deadLetterSink,omitempty"`

	// Retry is the minimum number of retries before an event is sent to the dead letter sink, 0 or more.
	// Optional; defaults to the system setting.
	// +optional
	Retry *int32 `json:"retry,omitempty"`

	// Timeout bounds one delivery attempt, as an ISO 8601 duration such as PT30S; greater than zero.
	// Optional; defaults to the system setting.
	// +optional
	Timeout *string `json:"timeout,omitempty"`

	// BackoffPolicy is linear (each retry waits backoffDelay) or exponential (retry n waits
	// backoffDelay x 2^n). Optional; defaults to the system setting.
	// +optional
	BackoffPolicy *BackoffPolicyType `json:"backoffPolicy,omitempty"`

	// BackoffDelay is the delay before the first retry, as an ISO 8601 duration such as PT0.5S. Optional;
	// defaults to the system setting.
	// +optional
	BackoffDelay *string `json:"backoffDelay,omitempty"`

	// RetryAfterMax is the maximum delay that a Retry-After header of a 429 or 503 response can request, as an
	// ISO 8601 duration; PT0S ignores such headers. Optional; defaults to no maximum.
	// +optional
	RetryAfterMax *string `json:"retryAfterMax,omitempty"`

	// Format of delivered events: json (structured) or binary. Optional; defaults to the mode in which the
	// event was received.
	// +optional
	Format *FormatType `json:"format,omitempty"`
}

// IsEmpty reports whether no options are set. Then the options of the Broker or Channel apply, or the system settings.
func (d *DeliverySpec) IsEmpty() bool { return d == nil || *d == DeliverySpec{} }

// DeliveryStatus contains the destination of undeliverable events.
type DeliveryStatus struct {
	// DeadLetterSinkURI is the resolved URL of spec.delivery.deadLetterSink. Set by the controller.
	// +optional
	DeadLetterSinkURI string `json:"deadLetterSinkUri,omitempty"`

	// DeadLetterSinkCACerts are the PEM certificates to trust when deadLetterSinkUri is https.
	// +optional
	DeadLetterSinkCACerts *string `json:"deadLetterSinkCACerts,omitempty"`

	// DeadLetterSinkAudience is the OIDC audience of the dead letter sink.
	// +optional
	DeadLetterSinkAudience *string `json:"deadLetterSinkAudience,omitempty"`
}

// SubscriberSpec is one resolved Subscription of a channel (eventing duckv1.SubscriberSpec). Only controllers
// write it.
type SubscriberSpec struct {
	// UID of the Subscription, which distinguishes it from an earlier one of the same name. Required.
	UID types.UID `json:"uid,omitempty"`

	// Name of the Subscription. Optional.
	// +optional
	Name *string `json:"name,omitempty"`

	// Generation of the Subscription that this entry was copied from.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// SubscriberURI is the resolved URL of the Subscription's spec.subscriber.
	// +optional
	SubscriberURI string `json:"subscriberUri,omitempty"`

	// SubscriberCACerts are the PEM certificates to trust when subscriberUri is https.
	// +optional
	SubscriberCACerts *string `json:"subscriberCACerts,omitempty"`

	// SubscriberAudience is the OIDC audience of the subscriber.
	// +optional
	SubscriberAudience *string `json:"subscriberAudience,omitempty"`

	// ReplyURI is the resolved URL of the Subscription's spec.reply.
	// +optional
	ReplyURI string `json:"replyUri,omitempty"`

	// ReplyCACerts are the PEM certificates to trust when replyUri is https.
	// +optional
	ReplyCACerts *string `json:"replyCACerts,omitempty"`

	// ReplyAudience is the OIDC audience of the reply destination.
	// +optional
	ReplyAudience *string `json:"replyAudience,omitempty"`

	// Delivery contains the resolved delivery options; its deadLetterSink uses the uri form.
	// +optional
	Delivery *DeliverySpec `json:"delivery,omitempty"`
}

// SubscriberStatus is the state of one subscriber of a channel (eventing
// duckv1.SubscriberStatus).
type SubscriberStatus struct {
	// UID of the Subscription. Required.
	UID types.UID `json:"uid,omitempty"`

	// Generation of the Subscription that the channel uses.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// ObservedGeneration equals generation. Knative's own channels report it under this name.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Ready reports whether the channel delivers to the subscriber: True, False or Unknown.
	// +optional
	Ready corev1.ConditionStatus `json:"ready,omitempty"`

	// Message is a human-readable description of ready.
	// +optional
	Message string `json:"message,omitempty"`
}
