package kubernetes

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes/images"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisions"
)

// revision is the state of a Revision and of its objects on the host.
type revision struct {
	*revisions.Entry
	runtime *Runtime

	// uid is the UID of the Revision, empty before Apply.
	uid types.UID
	// removed Revisions become unknown after their last Pod is deleted.
	removed    bool
	deployment deployment
	creation   creation
	pods       *pods
}

// apply registers a Revision, and returns the plan if its Deployment must be created now.
func (r *revision) apply(revision *servingv1.Revision, writes bool) *plan {
	if r.uid != revision.UID || r.removed {
		r.reset()
		r.uid, r.removed = revision.UID, false
	}
	switch {
	case !writes || r.deployment.of(r.uid) != nil || r.creation.pending():
		return nil
	case r.creation.resolution == nil:
		r.creation.resolving = true
		go r.resolve(r.runtime.ctx, revision)
		return nil
	}
	current := r.runtime.options.Settings()
	p := &plan{
		images: *r.creation.resolution, progressDeadline: current.Deployment.ProgressDeadline,
		replicas: ptr.Deref(r.deployment.wanted, current.InitialScaleOf(revision.Annotations)),
	}
	p.runtimeClass, p.spread = current.PodDefaults(revision.Labels)
	if address := r.runtime.options.DrainAddress; address != nil {
		p.drainHost, p.drainPort = address()
	}
	return p
}

// reset deletes the state that belongs to one Revision or Deployment.
func (r *revision) reset() {
	r.deployment.wanted, r.deployment.requested = nil, nil
	r.creation.reset()
}

// resolve resolves the images of a Revision, and requests that the Revision is applied again.
func (r *revision) resolve(ctx context.Context, revision *servingv1.Revision) {
	found, err := r.runtime.resolution(ctx, revision)
	if ctx.Err() != nil {
		return
	}
	r.Lock()
	defer r.Unlock()
	if r.uid != revision.UID {
		return
	}
	r.creation.resolving, r.creation.resolution = false, found
	r.Notify()
	var missing *images.MissingError
	switch {
	case err == nil:
		r.creation.refused = nil
	case errors.As(err, &missing):
		r.refuse(&workload.Failure{Reason: reasonContainerMissing, Message: missing.Error()})
	default:
		r.runtime.logger.Error(err, "Failed to resolve images of Revision; retrying", "revision", r.Key)
		r.refuse(r.creation.refused)
	}
}

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
		if err := r.runtime.deleteDeployment(ctx, other); err != nil {
			return err
		}
		failure = nil
	}
	r.Lock()
	defer r.Unlock()
	r.refuse(failure)
	return nil
}

// setDeployment stores the Deployment from the host.
func (r *revision) setDeployment(object *appsv1.Deployment) {
	before := r.deployment.atZero()
	r.deployment.object, r.deployment.requested = object, nil
	if before && !r.deployment.atZero() {
		r.deployment.raised = r.runtime.clock.Now()
	}
	if r.deployment.of(r.uid) != nil {
		r.reset()
	}
}

// deploymentChanged handles a Deployment from the watch.
func (rt *Runtime) deploymentChanged(object *appsv1.Deployment, gone bool) {
	key, ok := keyOf(object)
	if !ok || object.Name != DeploymentName(key.Name) {
		return
	}
	r := rt.revisions.LockOrCreate(key)
	defer r.Unlock()
	if !gone {
		r.setDeployment(object)
		return
	}
	if r.deployment.object != nil && r.deployment.object.UID == object.UID {
		if own := r.deployment.of(r.uid); own != nil {
			r.deployment.wanted = own.Spec.Replicas
		}
		r.deployment.object, r.deployment.requested = nil, nil
		// The Deployment must be created again.
		r.Notify()
	}
}

// Observe returns the State of the Revision.
func (r *revision) Observe() *workload.State {
	if r.removed && len(r.pods.of(r.uid)) == 0 {
		r.reset()
		r.uid, r.removed = "", false
	}
	if r.uid == "" {
		return nil
	}
	state := &workload.State{
		UID: r.uid, Desired: ptr.Deref(r.deployment.wanted, 0), Failure: r.creation.refused, Resolving: r.creation.resolving,
	}
	if url := r.runtime.options.LogURL; url != nil {
		state.LogURL = url(r.Key)
	}
	pods := r.pods.of(r.uid)
	for _, p := range pods {
		if ready := p.ready(); ready || p.draining() {
			state.Instances = append(state.Instances, workload.Instance{Name: p.Name, Address: p.address, Draining: !ready})
			if ready {
				state.Ready++
			}
		}
	}
	own := r.deployment.of(r.uid)
	if own == nil {
		return state
	}
	state.Desired = ptr.Deref(own.Spec.Replicas, 1)
	state.Warning = own.Annotations[warningAnnotationKey]
	state.Containers = statuses(own.Spec.Template.Spec.Containers)
	state.InitContainers = statuses(own.Spec.Template.Spec.InitContainers)
	if state.Desired > 0 {
		state.Failure = failure(pods, own, r.runtime.options.Settings().Deployment.AlwaysSchedulable)
	}
	return state
}

// Unused reports whether the Revision is unknown and has no objects on the host.
func (r *revision) Unused() bool {
	return r.uid == "" && r.deployment.object == nil && len(r.pods.byUID) == 0
}

// Deleted implements revisions.Revision.
func (r *revision) Deleted() {}
