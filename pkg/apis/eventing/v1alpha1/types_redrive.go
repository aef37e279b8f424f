package v1alpha1

import (
	"bytes"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Redrive asks for the dead letters of a Trigger or Subscription to be delivered again: the subresource redrive. It is not stored; the answer is the EventRun that
// delivers them. An empty object selects all dead letters.
type Redrive struct {
	metav1.TypeMeta `json:",inline"`

	// Standard object's metadata: name and namespace of the Trigger or Subscription.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Selector selects dead letters by their events. Optional; defaults to all dead letters.
	// +optional
	Selector *EventSelector `json:"selector,omitempty"`

	// Rate is the maximum number of events per second. Optional; without it, events follow as fast as they are delivered.
	// +optional
	Rate *int32 `json:"rate,omitempty"`

	// Destination gets the events instead of the subscriber. Dead letters that it does not accept remain. Optional; defaults to the subscriber.
	// +optional
	Destination *duckv1.Destination `json:"destination,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler. Unknown fields are errors, whatever the request says about them: with a misspelled selector, a request would
// select all dead letters.
func (r *Redrive) UnmarshalJSON(data []byte) error {
	type plain Redrive
	return decodeKnown(data, (*plain)(r))
}

// decodeKnown decodes JSON. Unknown fields are errors.
func decodeKnown(data []byte, to any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(to)
}
