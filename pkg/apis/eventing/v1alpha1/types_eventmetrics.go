package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EventMetrics are the numbers of events of a Broker, Trigger, Channel or Subscription, at each replica of the server that has counted some. They are
// read-only and not stored: two reads, some seconds apart, give the rates between them.
type EventMetrics struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The name is the kind of the object in lower case, "-", and the name of the object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Object is the Broker, Trigger, Channel or Subscription.
	Object EventMetricsObject `json:"object"`

	// Timestamp is the time at which the metrics were read.
	Timestamp metav1.MicroTime `json:"timestamp"`

	// Replicas are the metrics at each replica.
	// +listType=map
	// +listMapKey=name
	Replicas []EventMetricsReplica `json:"replicas"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EventMetricsList is a list of EventMetrics.
type EventMetricsList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the EventMetrics.
	Items []EventMetrics `json:"items"`
}

// EventMetricsObject is an object in the namespace of its EventMetrics.
type EventMetricsObject struct {
	// Kind is Broker, Trigger, Channel or Subscription.
	Kind string `json:"kind"`
	// Name is the name of the object.
	Name string `json:"name"`
}

// EventMetricsReplica has the numbers of events at a replica since it counts the events of the object.
type EventMetricsReplica struct {
	// Name is the name of the replica.
	Name string `json:"name"`
	// StartTime is the time at which the replica started.
	StartTime metav1.MicroTime `json:"startTime"`
	// Accepted is the number of accepted events of a Broker or Channel, including replies.
	Accepted int64 `json:"accepted"`
	// Matched is the number of events for a Trigger or Subscription.
	Matched int64 `json:"matched"`
	// Delivered is the number of events that the subscriber accepted.
	Delivered int64 `json:"delivered"`
	// Retries is the number of failed attempts that are retried.
	Retries int64 `json:"retries"`
	// DeadLettered is the number of events that the dead letter sink or the dead letter store accepted.
	DeadLettered int64 `json:"deadLettered"`
	// Dropped is the number of events that neither the subscriber nor a dead letter sink nor the dead letter store accepted.
	Dropped int64 `json:"dropped"`
	// InFlight is the number of delivery attempts in flight.
	InFlight int64 `json:"inFlight"`
	// OldestUndeliveredMilliseconds is the age of the oldest undelivered event; 0 without one.
	OldestUndeliveredMilliseconds int64 `json:"oldestUndeliveredMilliseconds"`
}

// EventMetricsName returns the name of the EventMetrics of an object.
func EventMetricsName(kind, name string) string { return strings.ToLower(kind) + "-" + name }

// The fields of EventMetrics that field selectors may use, besides metadata.name and metadata.namespace.
const (
	EventMetricsObjectKindField = "object.kind"
	EventMetricsObjectNameField = "object.name"
)

// Fields returns the values of the fields that field selectors may use.
func (m *EventMetrics) Fields() fields.Set {
	return fields.Set{
		"metadata.name": m.Name, "metadata.namespace": m.Namespace,
		EventMetricsObjectKindField: m.Object.Kind, EventMetricsObjectNameField: m.Object.Name,
	}
}

// Total returns the sum of the metrics of all replicas, and the greatest age.
func (m *EventMetrics) Total() (total EventMetricsReplica) {
	for i := range m.Replicas {
		r := &m.Replicas[i]
		total.Accepted += r.Accepted
		total.Matched += r.Matched
		total.Delivered += r.Delivered
		total.Retries += r.Retries
		total.DeadLettered += r.DeadLettered
		total.Dropped += r.Dropped
		total.InFlight += r.InFlight
		total.OldestUndeliveredMilliseconds = max(total.OldestUndeliveredMilliseconds, r.OldestUndeliveredMilliseconds)
	}
	return total
}
