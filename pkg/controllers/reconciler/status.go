package reconciler

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// StatusClient is the part of a generated client that writes the status of a kind.
type StatusClient[O any] interface {
	UpdateStatus(ctx context.Context, obj O, opts metav1.UpdateOptions) (O, error)
}

// UpdateStatus writes the status of current, a copy of the listed object observed in which only the status was
// changed, if that changed in meaning. A Conflict means that observed is out of date: the informer brings the
// newer object. An object that is gone needs no status.
func UpdateStatus[O any](ctx context.Context, client StatusClient[O], observed, current O) error {
	if ctx.Value(postponing{}) != nil && !mayWait(observed, current) {
		ctx = AtOnce(ctx)
	}
	return UpdateStatusLater(ctx, client, observed, current)
}

// UpdateStatusLater is UpdateStatus of what is likely to be different in a moment, where the controller may Postpone it.
func UpdateStatusLater[O any](ctx context.Context, client StatusClient[O], observed, current O) error {
	if equality.Semantic.DeepEqual(observed, current) {
		return nil
	}
	if ctx.Value(postponing{}) != nil {
		return errPostponed
	}
	_, err := client.UpdateStatus(ctx, current, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// True is a condition that holds.
func True(t duckv1.ConditionType) duckv1.Condition {
	return duckv1.Condition{Type: t, Status: corev1.ConditionTrue}
}

// False is a condition that does not hold (serving 6-6).
func False(t duckv1.ConditionType, reason, message string) duckv1.Condition {
	return duckv1.Condition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message}
}

// Unknown is a condition of which it is not determined yet whether it holds (serving 6-7).
func Unknown(t duckv1.ConditionType, reason, message string) duckv1.Condition {
	return duckv1.Condition{Type: t, Status: corev1.ConditionUnknown, Reason: reason, Message: message}
}

// Repeat is a dependent condition of type t that says what another object's condition says. A missing one is
// Unknown.
func Repeat(t duckv1.ConditionType, of *duckv1.Condition) duckv1.Condition {
	if of == nil {
		return Unknown(t, "", "")
	}
	return duckv1.Condition{Type: t, Status: of.Status, Reason: of.Reason, Message: of.Message}
}

// Observe records the conditions found of an object's generation, and the generation as observed, for one
// write (serving 9.1.3-4, 9.2.3-3). Dependents of which nothing was found stay as they are, but are Unknown
// for a generation not observed before: what is known belongs to an older one. Ready sums all up
// (serving 6-12, 6-13), unless it is among the conditions found.
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

// Ready returns the Ready condition if it belongs to the object's present generation, and nil otherwise.
func Ready(obj metav1.Object, status *duckv1.Status) *duckv1.Condition {
	if status.ObservedGeneration != obj.GetGeneration() {
		return nil
	}
	return status.Conditions.Get(duckv1.ConditionReady)
}
