package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EventRun delivers stored events again: to a Trigger or Subscription, or to all Triggers of a Broker. The subresources redrive of Triggers and
// Subscriptions, and replay of Brokers, create it; deleting it cancels it. A target, which owns it, has at most one: a later one replaces one that
// has ended.
type EventRun struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec selects the events. It may not change.
	// +optional
	Spec EventRunSpec `json:"spec,omitempty"`

	// Status is the progress. Ignored when the EventRun itself is written.
	// +optional
	Status EventRunStatus `json:"status,omitempty"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// EventRunList is a list of EventRuns.
type EventRunList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// Items are the EventRuns.
	Items []EventRun `json:"items"`
}

// EventRunSpec selects the events of an EventRun.
type EventRunSpec struct {
	// Target is the object that gets the events. Required.
	Target EventRunTarget `json:"target"`

	// Redrive delivers dead letters of the target. Each is deleted once it is queued for delivery. Either it or replay is required.
	// +optional
	Redrive *EventRunRedrive `json:"redrive,omitempty"`

	// Replay delivers events from the archive of a Broker. They remain in the archive.
	// +optional
	Replay *EventRunReplay `json:"replay,omitempty"`
}

// EventRunTarget is an object in the namespace of the EventRun.
type EventRunTarget struct {
	// Kind is the kind of the object: Trigger or Subscription, or Broker for all Triggers of a Broker whose filters match.
	Kind string `json:"kind"`

	// Name is the name of the object.
	Name string `json:"name"`
}

// EventRunRedrive selects dead letters.
type EventRunRedrive struct {
	// Selector selects dead letters by their events. Optional; defaults to all dead letters of the target.
	// +optional
	Selector *EventSelector `json:"selector,omitempty"`

	// Rate is the maximum number of events per second. Optional; without it, events follow as fast as they are delivered.
	// +optional
	Rate *int32 `json:"rate,omitempty"`

	// Destination gets the events instead of the subscriber of the target. A dead letter is deleted once it is delivered there. Requests have no
	// token. Optional; defaults to the subscriber.
	// +optional
	Destination *duckv1.Destination `json:"destination,omitempty"`
}

// EventRunReplay selects archived events.
type EventRunReplay struct {
	// Broker is the name of the Broker, in the namespace of the EventRun.
	Broker string `json:"broker"`

	// From is the time of acceptance of the first event. Optional; defaults to the beginning of the archive.
	// +optional
	From *metav1.MicroTime `json:"from,omitempty"`

	// To is a time: events that were accepted before it are part of the replay.
	To metav1.MicroTime `json:"to"`

	// Selector selects events. Optional; defaults to all events.
	// +optional
	Selector *EventSelector `json:"selector,omitempty"`

	// Rate is the maximum number of events per second. Optional; without it, events follow as fast as they are delivered.
	// +optional
	Rate *int32 `json:"rate,omitempty"`
}

// EventSelector selects events by their attributes. An event must match all fields.
type EventSelector struct {
	// ID is the attribute id. Empty selects any.
	// +optional
	ID string `json:"id,omitempty"`

	// Source is the attribute source. Empty selects any.
	// +optional
	Source string `json:"source,omitempty"`

	// Type is the attribute type. Empty selects any.
	// +optional
	Type string `json:"type,omitempty"`

	// Filters select events with the dialects of the CloudEvents Subscriptions API; an event must match all of them.
	// +optional
	// +listType=atomic
	Filters []eventingv1.SubscriptionsAPIFilter `json:"filters,omitempty"`
}

// EventRunConditionSucceeded is True if all events are queued for delivery, False if an event cannot be delivered again, and Unknown while the
// EventRun is in progress. Ready has the same status.
const EventRunConditionSucceeded duckv1.ConditionType = "Succeeded"

// EventRunPhase summarizes the conditions of an EventRun.
type EventRunPhase string

// The phases of an EventRun. Succeeded and Failed are final.
const (
	EventRunPending   EventRunPhase = "Pending"
	EventRunRunning   EventRunPhase = "Running"
	EventRunSucceeded EventRunPhase = "Succeeded"
	EventRunFailed    EventRunPhase = "Failed"
)

// EventRunStatus is the progress of an EventRun.
type EventRunStatus struct {
	duckv1.Status `json:",inline"`

	// Phase is Pending, Running, Succeeded or Failed.
	// +optional
	Phase EventRunPhase `json:"phase,omitempty"`

	// Last is the name of the last dead letter of the namespace when the EventRun started: later ones are not part of it. Empty without dead
	// letters.
	// +optional
	Last string `json:"last,omitempty"`

	// Total is the number of selected events. Omitted until they are counted, and for replays.
	// +optional
	Total *int64 `json:"total,omitempty"`

	// Queued is the number of events that are queued for delivery, or delivered to the destination, including events whose dead letters were
	// deleted since they were counted.
	// +optional
	Queued int64 `json:"queued,omitempty"`

	// Failed is the number of events that cannot be delivered again, or that the destination does not accept. They remain where they are stored.
	// +optional
	Failed int64 `json:"failed,omitempty"`

	// Position is the place in the archive from which a replay continues. Events that were queued after it was stored are repeated if the
	// server crashes.
	// +optional
	Position string `json:"position,omitempty"`

	// LastEventTime is the time at which the Broker accepted the last event that a replay queued.
	// +optional
	LastEventTime *metav1.Time `json:"lastEventTime,omitempty"`

	// Evicted is true if events were deleted from the archive before a replay had read them.
	// +optional
	Evicted bool `json:"evicted,omitempty"`

	// StartTime is the time at which the EventRun started.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// CompletionTime is the time at which the EventRun succeeded or failed.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

// Ended reports whether the EventRun has succeeded or failed.
func (r *EventRun) Ended() bool {
	return r.Status.Phase == EventRunSucceeded || r.Status.Phase == EventRunFailed
}
