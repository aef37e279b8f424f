package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Replay asks for the archived events of a Broker to be delivered again: the subresource replay. It is not stored; the answer is the EventRun that
// delivers them. An empty object selects all events, for all Triggers of the Broker whose filters match.
type Replay struct {
	metav1.TypeMeta `json:",inline"`

	// Standard object's metadata: name and namespace of the Broker.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// From selects the events that the Broker accepted at this time or later. Optional; defaults to the beginning of the archive.
	// +optional
	From *metav1.Time `json:"from,omitempty"`

	// To selects the events that the Broker accepted before this time. Optional; defaults to the time of the request, as does a later time.
	// +optional
	To *metav1.Time `json:"to,omitempty"`

	// Selector selects events by their attributes. Optional; defaults to all events.
	// +optional
	Selector *EventSelector `json:"selector,omitempty"`

	// Rate is the maximum number of events per second. Optional; without it, events follow as fast as they are delivered.
	// +optional
	Rate *int32 `json:"rate,omitempty"`

	// Trigger is the name of a Trigger of the Broker, in the same namespace, that alone gets the events, whether or not its filters match.
	// Optional; defaults to all Triggers of the Broker whose filters match.
	// +optional
	Trigger string `json:"trigger,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler. Unknown fields are errors, whatever the request says about them: with a misspelled selector or Trigger, a
// request would select all events, for all Triggers.
func (r *Replay) UnmarshalJSON(data []byte) error {
	type plain Replay
	return decodeKnown(data, (*plain)(r))
}
