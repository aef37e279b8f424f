package kubernetes

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// deployment is the Deployment of a Revision and its scale.
type deployment struct {
	// object is the Deployment with the Revision's name, which may belong to an earlier Revision. Trimmed.
	object *appsv1.Deployment
	// wanted is the number of backends requested before the Deployment exists. requested is the number requested from the
	// Deployment, until the watch reports a change of it.
	wanted, requested *int32
	// raised is when this replica observed that the scale left zero, or the Deployment with a scale above zero.
	raised time.Time
}

// atZero reports whether no backend is requested from the Deployment, or it does not exist.
func (d *deployment) atZero() bool {
	return d.object == nil || ptr.Deref(d.object.Spec.Replicas, 1) == 0
}

// of returns the Deployment if it belongs to the Revision with a UID.
func (d *deployment) of(uid types.UID) *appsv1.Deployment {
	if d.object == nil || uid == "" {
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(d.object); owner == nil || owner.UID != uid {
		return nil
	}
	return d.object
}

// replicas returns the number of backends requested from the existing Deployment.
func (d *deployment) replicas() int32 {
	return ptr.Deref(d.requested, ptr.Deref(d.object.Spec.Replicas, 1))
}

// Scale sets the number of backends. The ReplicaSet chooses the Pods to delete, preferring those not ready.
func (rt *Runtime) Scale(ctx context.Context, key types.NamespacedName, replicas int32) error {
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return nil
	}
	replicas = max(replicas, 0)
	own := r.deployment.of(r.uid)
	if own == nil && !r.removed {
		r.deployment.wanted = &replicas
	}
	unchanged := r.removed || own == nil || r.deployment.replicas() == replicas
	r.Unlock()
	if unchanged {
		return nil
	}
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := rt.client.AppsV1().Deployments(key.Namespace).Patch(ctx, own.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	return r.scaled(own, replicas, err)
}

// Activate requests one backend for a Revision scaled to zero, because a request waits. Unlike Scale, any replica may call
// it.
func (rt *Runtime) Activate(ctx context.Context, key types.NamespacedName) error {
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return nil
	}
	own := r.deployment.of(r.uid)
	if r.removed || own == nil || r.deployment.replicas() > 0 {
		r.Unlock()
		return nil
	}
	r.deployment.requested = ptr.To[int32](1)
	r.Unlock()
	patch := []byte(`[{"op":"test","path":"/spec/replicas","value":0},{"op":"replace","path":"/spec/replicas","value":1}]`)
	_, err := rt.client.AppsV1().Deployments(key.Namespace).Patch(ctx, own.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if apierrors.IsInvalid(err) {
		// Another client scaled it first.
		err = nil
	}
	return r.scaled(own, 1, err)
}

// scaled records the result of a request to scale a Deployment.
func (r *revision) scaled(of *appsv1.Deployment, replicas int32, err error) error {
	r.Lock()
	defer r.Unlock()
	d := &r.deployment
	switch {
	case d.object == nil || d.object.UID != of.UID:
	case err != nil:
		d.requested = nil
	case d.object == of:
		// The request holds until the watch reports another version of the Deployment.
		d.requested = &replicas
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("scale Deployment %q to %d: %w", of.Name, replicas, err)
	}
	return nil
}

// Remove deletes the Deployment of a Revision; the host's garbage collector would delete it too. The Revision becomes
// unknown after its last Pod is deleted.
func (rt *Runtime) Remove(ctx context.Context, key types.NamespacedName, uid types.UID, writes bool) error {
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return nil
	}
	var own *appsv1.Deployment
	if r.uid == uid {
		r.removed = true
		own = r.deployment.of(uid)
	}
	r.Unlock()
	if own == nil || !writes || own.DeletionTimestamp != nil {
		return nil
	}
	return rt.deleteDeployment(ctx, own)
}

func (rt *Runtime) deleteDeployment(ctx context.Context, object *appsv1.Deployment) error {
	err := rt.client.AppsV1().Deployments(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
		Preconditions:     metav1.NewUIDPreconditions(string(object.UID)),
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete Deployment %q: %w", object.Name, err)
	}
	return nil
}
