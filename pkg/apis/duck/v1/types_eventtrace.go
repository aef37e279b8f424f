package v1

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EventTrace is what happened to events: the subresource trace of a Broker or Channel. It is not stored.
type EventTrace struct {
	metav1.TypeMeta `json:",inline"`

	// Standard object's metadata: name and namespace of the Broker or Channel.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Events are the events that were found, and what followed from them: replies, and events that were delivered to other
	// Brokers and Channels. Each follows its parent.
	// +listType=atomic
	Events []TracedEvent `json:"events"`

	// Incomplete lists reasons why records may be missing, such as replicas that did not answer. Empty for a complete answer.
	// +optional
	// +listType=atomic
	Incomplete []string `json:"incomplete,omitempty"`
}

// TracedEvent is the acceptance of an event by a Broker or Channel, with its deliveries.
type TracedEvent struct {
	// Number identifies the event in this trace, from 1.
	Number int32 `json:"number"`

	// Parent is the delivery that the event follows from. Empty for an event that a client sent.
	// +optional
	Parent *TracedParent `json:"parent,omitempty"`

	// At is the Broker or Channel. Its name is omitted if the user may not get its traces.
	At TracedObject `json:"at"`

	// Hidden is true if the Broker or Channel is in another namespace, in which the user may not get traces. Nothing else is shown then.
	// +optional
	Hidden bool `json:"hidden,omitempty"`

	// ID is the attribute id of the event.
	// +optional
	ID string `json:"id,omitempty"`

	// Source is the attribute source of the event.
	// +optional
	Source string `json:"source,omitempty"`

	// Type is the attribute type of the event.
	// +optional
	Type string `json:"type,omitempty"`

	// Subject is the attribute subject of the event.
	// +optional
	Subject string `json:"subject,omitempty"`

	// TraceID is the W3C trace ID of the event.
	// +optional
	TraceID string `json:"traceID,omitempty"`

	// AcceptedAt is the time of the acceptance.
	// +optional
	AcceptedAt *metav1.MicroTime `json:"acceptedAt,omitempty"`

	// Sender is the name of the sender, if senders are verified.
	// +optional
	Sender string `json:"sender,omitempty"`

	// SenderAddress is the IP address from which the event was sent.
	// +optional
	SenderAddress string `json:"senderAddress,omitempty"`

	// Unrecorded is true if the record of the acceptance is missing, because it was evicted or lost. Attempts are known nevertheless, but
	// not the sender and unmatched consumers.
	// +optional
	Unrecorded bool `json:"unrecorded,omitempty"`

	// Deliveries are the deliveries to the Triggers or Subscriptions that the event matched.
	// +optional
	// +listType=atomic
	Deliveries []TracedDelivery `json:"deliveries,omitempty"`

	// Unmatched are the Triggers that the event did not match.
	// +optional
	// +listType=atomic
	Unmatched []TracedMismatch `json:"unmatched,omitempty"`
}

// TracedObject names an object.
type TracedObject struct {
	// Kind is the kind of the object.
	Kind string `json:"kind"`
	// Namespace is the namespace of the object.
	Namespace string `json:"namespace"`
	// Name is the name of the object. Omitted if the user may not know it.
	// +optional
	Name string `json:"name,omitempty"`
}

// TracedParent is a delivery from which an event followed.
type TracedParent struct {
	// Number is the number of the event that was delivered.
	Number int32 `json:"number"`
	// Consumer is the Trigger or Subscription of the delivery.
	Consumer TracedObject `json:"consumer"`
	// As is Delivery, Reply or DeadLetter.
	As string `json:"as"`
}

// The values of TracedParent.As.
const (
	TracedAsDelivery   = "Delivery"
	TracedAsReply      = "Reply"
	TracedAsDeadLetter = "DeadLetter"
)

// TracedDelivery is the delivery of an event to a Trigger or Subscription.
type TracedDelivery struct {
	// Consumer is the Trigger or Subscription.
	Consumer TracedObject `json:"consumer"`

	// Hidden is true if the consumer is in another namespace, in which the user may not get it. Nothing else is shown then.
	// +optional
	Hidden bool `json:"hidden,omitempty"`

	// State is Pending before the first attempt, then Retrying, Delivered, DeadLettering, DeadLettered or Dropped.
	// +optional
	State string `json:"state,omitempty"`

	// Reason explains the state.
	// +optional
	Reason string `json:"reason,omitempty"`

	// Attempts are all attempts in the order of their times.
	// +optional
	// +listType=atomic
	Attempts []TracedAttempt `json:"attempts,omitempty"`
}

// The values of TracedDelivery.State.
const (
	TracedPending       = "Pending"
	TracedRetrying      = "Retrying"
	TracedDelivered     = "Delivered"
	TracedDeadLettering = "DeadLettering"
	TracedDeadLettered  = "DeadLettered"
	TracedDropped       = "Dropped"
)

// TracedAttempt is an attempt to send an event.
type TracedAttempt struct {
	// Number counts the attempts to send the event to this endpoint, from 1.
	Number int32 `json:"number"`

	// To is Subscriber, Reply, DeadLetterSink or DeadLetterStore.
	To string `json:"to"`

	// Time is the beginning of the attempt.
	Time metav1.MicroTime `json:"time"`

	// DurationMilliseconds is the time until the end of the attempt; 0 for less than a millisecond.
	DurationMilliseconds int64 `json:"durationMilliseconds"`

	// Address is the URL of the endpoint, without credentials and query.
	// +optional
	Address string `json:"address,omitempty"`

	// Code is the HTTP status of the response. Omitted without a response.
	// +optional
	Code int32 `json:"code,omitempty"`

	// Error is why the attempt failed, or why the reply was not accepted.
	// +optional
	Error string `json:"error,omitempty"`

	// NextAttempt is the time of the next attempt.
	// +optional
	NextAttempt *metav1.MicroTime `json:"nextAttempt,omitempty"`

	// Reply is the event in the response.
	// +optional
	Reply *TracedReply `json:"reply,omitempty"`
}

// The values of TracedAttempt.To.
const (
	TracedToSubscriber      = "Subscriber"
	TracedToReply           = "Reply"
	TracedToDeadLetterSink  = "DeadLetterSink"
	TracedToDeadLetterStore = "DeadLetterStore"
)

// TracedReply is a reply.
type TracedReply struct {
	// ID is the attribute id of the reply.
	ID string `json:"id"`
	// Source is the attribute source of the reply.
	// +optional
	Source string `json:"source,omitempty"`
}

// TracedMismatch is a Trigger that an event did not match.
type TracedMismatch struct {
	// Consumer is the Trigger.
	Consumer TracedObject `json:"consumer"`

	// Filter is the expression that the event did not pass, by its place in the spec, such as filters[0].exact.type.
	// +optional
	Filter string `json:"filter,omitempty"`

	// Reason explains why the event did not pass.
	Reason string `json:"reason"`

	// Changed is true if Triggers of the Broker have been created, changed or deleted since the event was accepted, so that the filter may be
	// another one than at that time.
	// +optional
	Changed bool `json:"changed,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EventTraceOptions are the query parameters of the subresource trace. One of id and traceid must be set.
type EventTraceOptions struct {
	metav1.TypeMeta `json:",inline"`

	// ID is the attribute id of the event.
	// +optional
	ID string `json:"id,omitempty"`

	// Source is the attribute source of the event. Optional; defaults to all sources.
	// +optional
	Source string `json:"source,omitempty"`

	// TraceID is the W3C trace ID of the events, in 32 hexadecimal digits.
	// +optional
	TraceID string `json:"traceid,omitempty"`
}

// SwaggerDoc describes the parameters.
func (EventTraceOptions) SwaggerDoc() map[string]string {
	return map[string]string{
		"id":      "Attribute id of the event. One of id and traceid must be set.",
		"source":  "Attribute source of the event. Defaults to all sources.",
		"traceid": "W3C trace ID of the events, in 32 hexadecimal digits.",
	}
}

// maxTraceParameter bounds the parameters, in bytes.
const maxTraceParameter = 64 << 10

// convertTraceParameters parses the parameters of a request. It rejects unknown ones, because a misspelt parameter would change the
// meaning of the request.
func convertTraceParameters(in *url.Values, out *EventTraceOptions, _ conversion.Scope) error {
	parameters := map[string]*string{"id": &out.ID, "source": &out.Source, "traceid": &out.TraceID}
	for _, name := range slices.Sorted(maps.Keys(*in)) {
		values := (*in)[name]
		parameter, known := parameters[name]
		switch {
		case name == "pretty" || name == "timeout":
			// These parameters concern the request, not the trace.
			continue
		case !known:
			return fmt.Errorf("unknown parameter '%.100s'; valid parameters are id, source, traceid", name)
		case len(values) != 1:
			return fmt.Errorf("parameter '%s' must be set only once", name)
		case values[0] == "":
			return fmt.Errorf("parameter '%s' must not be empty", name)
		case len(values[0]) > maxTraceParameter:
			return fmt.Errorf("parameter '%s' must have at most %d bytes", name, maxTraceParameter)
		}
		*parameter = values[0]
	}
	switch {
	case out.ID == "" && out.TraceID == "":
		return fmt.Errorf("one of the parameters 'id' and 'traceid' must be set")
	case out.ID != "" && out.TraceID != "":
		return fmt.Errorf("only one of the parameters 'id' and 'traceid' may be set")
	case out.Source != "" && out.ID == "":
		return fmt.Errorf("parameter 'source' requires parameter 'id'")
	case out.TraceID != "" && !isTraceID(out.TraceID):
		return fmt.Errorf("parameter 'traceid' must be 32 lower-case hexadecimal digits, not all zero, such as 4bf92f3577b34da6a3ce929d0e0e4736")
	}
	return nil
}

// isTraceID reports whether a text is a trace ID (W3C Trace Context, 3.2.2.3).
func isTraceID(text string) bool {
	return len(text) == 32 && strings.Trim(text, "0123456789abcdef") == "" && strings.Trim(text, "0") != ""
}

// AddEventTrace registers EventTrace and its options in an API group.
func AddEventTrace(scheme *runtime.Scheme, gv schema.GroupVersion) error {
	scheme.AddKnownTypes(gv, &EventTrace{}, &EventTraceOptions{})
	return scheme.AddConversionFunc((*url.Values)(nil), (*EventTraceOptions)(nil), func(a, b any, scope conversion.Scope) error {
		return convertTraceParameters(a.(*url.Values), b.(*EventTraceOptions), scope)
	})
}
