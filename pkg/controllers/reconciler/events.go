package reconciler

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// Reasons of Events of several kinds.
const (
	// ReasonCreated means that a controller created an object.
	ReasonCreated = "Created"
	// ReasonReady means that an object became ready.
	ReasonReady = "Ready"
	// ReasonNotReady means that an object is not ready and its condition has no reason.
	ReasonNotReady = "NotReady"
)

// Reasons of conditions of several kinds.
const (
	// ReasonNotOwned means that an object with a required name has another owner (serving 7.0.1-3).
	ReasonNotOwned = "NotOwned"
)

// RecordReady records an Event if, between two states of an object's conditions, Ready became True or False, or False for another
// reason.
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
