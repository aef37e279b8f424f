package reconciler

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// True returns a condition with status True.
func True(t duckv1.ConditionType) duckv1.Condition {
	return duckv1.Condition{Type: t, Status: corev1.ConditionTrue}
}

// False returns a condition with status False (serving 6-6).
func False(t duckv1.ConditionType, reason, message string) duckv1.Condition {
	return duckv1.Condition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message}
}

// Unknown returns a condition with status Unknown (serving 6-7).
func Unknown(t duckv1.ConditionType, reason, message string) duckv1.Condition {
	return duckv1.Condition{Type: t, Status: corev1.ConditionUnknown, Reason: reason, Message: message}
}

// Repeat returns a condition of type t with the status, reason and message of another object's condition, or Unknown if that
// is nil.
func Repeat(t duckv1.ConditionType, of *duckv1.Condition) duckv1.Condition {
	if of == nil {
		return Unknown(t, "", "")
	}
	return duckv1.Condition{Type: t, Status: of.Status, Reason: of.Reason, Message: of.Message}
}

// Observe sets the conditions found for an object's generation, and observedGeneration, so that both are written at once
// (serving 9.1.3-4, 9.2.3-3). Dependents that are not among the conditions found keep their value, or become Unknown if the
// generation was not observed before, because their value belongs to an older one. Ready is derived from the dependents (serving
// 6-12, 6-13) unless it is among the conditions found.
func Observe(status *duckv1.Status, generation int64, now metav1.Time, dependents []duckv1.ConditionType, found ...duckv1.Condition) {
	has := func(t duckv1.ConditionType) bool {
		return slices.ContainsFunc(found, func(c duckv1.Condition) bool { return c.Type == t })
	}
	if status.ObservedGeneration != generation {
		for _, t := range dependents {
			if !has(t) {
				status.Conditions.Set(Unknown(t, "", ""), now)
			}
		}
	}
	status.ObservedGeneration = generation
	for _, condition := range found {
		status.Conditions.Set(condition, now)
	}
	if !has(duckv1.ConditionReady) {
		status.Conditions.Set(status.Conditions.Ready(dependents...), now)
	}
}

// Ready returns the Ready condition if it belongs to the object's current generation, and nil otherwise.
func Ready(obj Object) *duckv1.Condition {
	status := obj.GetStatus()
	if status.ObservedGeneration != obj.GetGeneration() {
		return nil
	}
	return status.Conditions.Get(duckv1.ConditionReady)
}
