package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// create creates the Deployment of a Revision. If the host refuses it, the State has the reason and the creation is retried
// later.
func (r *revision) create(ctx context.Context, revision *servingv1.Revision, p plan) error {
	deployments := r.runtime.client.AppsV1().Deployments(r.Key.Namespace)
	created, err := deployments.Create(ctx, newDeployment(revision, p), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		created, err = deployments.Get(ctx, DeploymentName(r.Key.Name), metav1.GetOptions{})
		if err == nil && !metav1.IsControlledBy(created, revision) {
			return r.resolveConflict(ctx, created)
		}
	}
	r.Lock()
	defer r.Unlock()
	switch {
	case r.uid != revision.UID:
		return nil
	case err == nil:
		r.setDeployment(trimDeployment(created))
		return nil
	case isRefused(err):
		r.refuse(&workload.Failure{Resources: true, Reason: reasonFailedCreate, Message: err.Error()})
		return nil
	default:
		return fmt.Errorf("create Deployment %q: %w", DeploymentName(r.Key.Name), err)
	}
}

// resolveConflict handles a Deployment with the Revision's name and another owner. The Deployment of an earlier
// Revision is deleted.
func (r *revision) resolveConflict(ctx context.Context, other *appsv1.Deployment) error {
	failure := &workload.Failure{Resources: true, Reason: reasonNotOwned, Message: fmt.Sprintf(
		"There is an existing Deployment %q that does not belong to the Revision: delete it, or use another name.", other.Name)}
	owner := metav1.GetControllerOfNoCopy(other)
	if owner != nil && owner.Kind == "Revision" && owner.Name == r.Key.Name && owner.APIVersion == servingv1.SchemeGroupVersion.String() {
		if err := r.delete(ctx, other); err != nil {
			return err
		}
		failure = nil
	}
	r.Lock()
	defer r.Unlock()
	r.refuse(failure)
	return nil
}

func (r *revision) delete(ctx context.Context, deployment *appsv1.Deployment) error {
	err := r.runtime.client.AppsV1().Deployments(deployment.Namespace).Delete(ctx, deployment.Name, metav1.DeleteOptions{
		Preconditions:     metav1.NewUIDPreconditions(string(deployment.UID)),
		PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete Deployment %q: %w", deployment.Name, err)
	}
	return nil
}

// isRefused reports whether the host refused a valid request permanently, as opposed to a transient error.
func isRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return status.Status().Code >= 400 && status.Status().Code < 500
	}
}

// scale sets the number of replicas of the Deployment. The caller holds the lock, which scale releases.
func (r *revision) scale(ctx context.Context, replicas int32) error {
	if r.removed {
		r.Unlock()
		return nil
	}
	own := r.own()
	if own == nil {
		r.wanted = &replicas
		r.Unlock()
		return nil
	}
	if ptr.Deref(r.requested, ptr.Deref(own.Spec.Replicas, 1)) == replicas {
		r.Unlock()
		return nil
	}
	r.Unlock()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := r.runtime.client.AppsV1().Deployments(r.Key.Namespace).Patch(ctx, own.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	return r.scaled(own, replicas, err)
}

// activate sets the number of replicas of the Deployment to one if it is zero. The caller holds the lock, which activate
// releases.
func (r *revision) activate(ctx context.Context) error {
	own := r.own()
	if r.removed || own == nil || ptr.Deref(r.requested, ptr.Deref(own.Spec.Replicas, 1)) > 0 {
		r.Unlock()
		return nil
	}
	r.requested = ptr.To[int32](1)
	r.Unlock()
	patch := []byte(`[{"op":"test","path":"/spec/replicas","value":0},{"op":"replace","path":"/spec/replicas","value":1}]`)
	_, err := r.runtime.client.AppsV1().Deployments(r.Key.Namespace).Patch(ctx, own.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
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
	switch {
	case r.deployment == nil || r.deployment.UID != of.UID:
	case err != nil:
		r.requested = nil
	case r.deployment == of:
		// The request holds until the watch reports another version of the Deployment.
		r.requested = &replicas
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("scale Deployment %q to %d: %w", of.Name, replicas, err)
	}
	return nil
}

// remove deletes the Deployment of a Revision. The caller holds the lock, which remove releases.
func (r *revision) remove(ctx context.Context, uid types.UID, writes bool) error {
	if r.uid != uid {
		r.Unlock()
		return nil
	}
	r.removed = true
	own := r.own()
	r.Unlock()
	if own == nil || !writes || own.DeletionTimestamp != nil {
		return nil
	}
	return r.delete(ctx, own)
}
