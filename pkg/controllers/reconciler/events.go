package reconciler

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// Reasons of the Events that several kinds have.
const (
	// ReasonCreated tells of an object that a controller made.
	ReasonCreated = "Created"
	// ReasonReady tells that an object became ready.
	ReasonReady = "Ready"
	// ReasonNotReady tells that an object is not ready for a cause without a reason of its own.
	ReasonNotReady = "NotReady"
)

// Reasons of conditions that several kinds have, or look for in each other's.
const (
	// ReasonNotOwned tells that an object of the name needed belongs to another owner (serving 7.0.1-3).
	ReasonNotOwned = "NotOwned"
)

// RecordReady makes an Event of the change between two states of an object's conditions, if Ready became True,
// or False, or False for another cause.
func RecordReady(recorder record.EventRecorder, obj runtime.Object, before, after duckv1.Conditions) {
	was, is := before.Get(duckv1.ConditionReady), after.Get(duckv1.ConditionReady)
	if is == nil || was != nil && was.Status == is.Status && was.Reason == is.Reason {
		return
	}
	switch is.Status {
	case corev1.ConditionTrue:
		recorder.Event(obj, corev1.EventTypeNormal, ReasonReady, "Became ready")
	case corev1.ConditionFalse:
		reason := is.Reason
		if reason == "" {
			reason = ReasonNotReady
		}
		recorder.Event(obj, corev1.EventTypeWarning, reason, is.Message)
	}
}
