package reconciler

import (
	"context"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// Object is an object of a kind that has conditions.
type Object interface {
	metav1.Object
	// GetStatus returns the part of the status that all kinds share.
	GetStatus() *duckv1.Status
}

// StatusClient is the part of a generated client that writes the status of a kind.
type StatusClient[O any] interface {
	UpdateStatus(ctx context.Context, obj O, opts metav1.UpdateOptions) (O, error)
}

// StatusUpdate is a write of the status of one object.
type StatusUpdate struct {
	observed, current Object
	// write returns the resource version of the written object.
	write func(ctx context.Context) (version string, err error)
}

// UpdateOf returns the update that writes the status of current, a copy of the listed object observed in which only the status
// differs.
func UpdateOf[O Object](client StatusClient[O], observed, current O) StatusUpdate {
	return StatusUpdate{observed: observed, current: current, write: func(ctx context.Context) (string, error) {
		written, err := client.UpdateStatus(ctx, current, metav1.UpdateOptions{})
		if err != nil {
			return "", err
		}
		return written.GetResourceVersion(), nil
	}}
}

// changes reports whether the update changes the meaning of the status.
func (u StatusUpdate) changes() bool {
	return !equality.Semantic.DeepEqual(statusOf(u.observed), statusOf(u.current))
}

// statusOf returns a pointer to the status of an object. To compare the rest of two objects, which is equal, would cost several times as much.
func statusOf(o Object) any {
	return reflect.ValueOf(o).Elem().FieldByName("Status").Addr().Interface()
}

// keepsUnknown reports whether Ready is Unknown before and after the update, for the same generation or for the first one.
func (u StatusUpdate) keepsUnknown() bool {
	unknown := func(s *duckv1.Status) bool {
		ready := s.Conditions.Get(duckv1.ConditionReady)
		return ready != nil && ready.Status == corev1.ConditionUnknown
	}
	before, after := u.observed.GetStatus(), u.current.GetStatus()
	first := before.ObservedGeneration == 0 && len(before.Conditions) == 0
	return unknown(after) && (first || before.ObservedGeneration == after.ObservedGeneration && unknown(before))
}

// StatusWriter writes the status of the object that is reconciled. On a replica that does not own the object it writes nothing.
type StatusWriter struct {
	writes bool
	// own are the previous writes of the controller.
	own *ownWrites
	// deferrable is true while an update may be deferred, deferred once one was.
	deferrable, deferred bool
}

// Write writes the update, unless it changes nothing, and reports whether it was stored. A Conflict means that the observed object
// is outdated. If it is older than the last write of the same controller, Write does nothing: the object is reconciled again when its
// informer delivers that write. An object that no longer exists needs no status.
func (w *StatusWriter) Write(ctx context.Context, update StatusUpdate) (written bool, err error) {
	if !w.writes || !update.changes() || w.own.outdates(update.observed) {
		return false, nil
	}
	version, err := update.write(ctx)
	if err != nil {
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return false, err
	}
	w.own.note(update.observed.GetUID(), version)
	return true, nil
}

// Defer is like Write but may delay the write, because the status is expected to change again shortly. The object is reconciled
// again when the write is due.
func (w *StatusWriter) Defer(ctx context.Context, update StatusUpdate) (written bool, err error) {
	if w.writes && w.deferrable && update.changes() {
		w.deferred = true
		return false, nil
	}
	return w.Write(ctx, update)
}

// DeferUnknown is like Defer for an update that only changes the reason why Ready is Unknown, and like Write for any other.
func (w *StatusWriter) DeferUnknown(ctx context.Context, update StatusUpdate) (written bool, err error) {
	if update.keepsUnknown() {
		return w.Defer(ctx, update)
	}
	return w.Write(ctx, update)
}
