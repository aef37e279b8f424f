package kubernetes

import (
	"context"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisions"
)

// revision is the state of a Revision and of its objects on the host.
type revision struct {
	*revisions.Entry
	runtime *Runtime

	// uid is the UID of the Revision, empty before Apply.
	uid types.UID
	// removed Revisions become unknown after their last Pod is deleted.
	removed bool
	// deployment is the Deployment with the Revision's name, which may belong to an earlier Revision. Trimmed.
	deployment *appsv1.Deployment
	// wanted is the number of backends requested before the Deployment exists. requested is the number requested from the
	// Deployment, until the watch reports a change of it.
	wanted, requested *int32
	// pods are the Pods by UID.
	pods map[types.UID]*pod
	// resolution is the result of resolving the images, resolving is true while that is in progress.
	resolution *resolution
	resolving  bool
	// refused is the reason why there is no Deployment, retry the timer of the next attempt, failures the number of failed
	// attempts.
	refused  *workload.Failure
	retry    clock.Timer
	failures int
}

// apply registers a Revision, and returns the plan if its Deployment must be created now.
func (r *revision) apply(revision *servingv1.Revision, writes bool) *plan {
	if r.uid != revision.UID || r.removed {
		r.reset()
		r.uid, r.removed = revision.UID, false
	}
	switch {
	case !writes || r.own() != nil || r.retry != nil || r.resolving:
		return nil
	case r.resolution == nil:
		r.resolving = true
		go r.resolve(r.runtime.ctx, revision)
		return nil
	}
	current := r.runtime.options.Settings()
	p := &plan{
		images: *r.resolution, progressDeadline: current.Deployment.ProgressDeadline,
		replicas: current.InitialScaleOf(revision.Annotations),
	}
	p.runtimeClass, p.spread = current.PodDefaults(revision.Labels)
	if address := r.runtime.options.DrainAddress; address != nil {
		p.drainHost, p.drainPort = address()
	}
	if r.wanted != nil {
		p.replicas = *r.wanted
	}
	return p
}

// reset deletes the state that belongs to one Revision or Deployment.
func (r *revision) reset() {
	r.wanted, r.requested, r.resolution, r.refused, r.failures, r.resolving = nil, nil, nil, nil, 0, false
	if r.retry != nil {
		r.retry.Stop()
		r.retry = nil
	}
}

// own returns the Deployment if it belongs to the Revision.
func (r *revision) own() *appsv1.Deployment {
	if r.deployment == nil || r.uid == "" {
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(r.deployment); owner == nil || owner.UID != r.uid {
		return nil
	}
	return r.deployment
}

// setDeployment stores the Deployment from the host.
func (r *revision) setDeployment(deployment *appsv1.Deployment) {
	r.deployment, r.requested = deployment, nil
	if r.own() != nil {
		r.reset()
	}
}

// firstRetry and maxRetry limit the delay before the creation of a Deployment is retried.
const firstRetry, maxRetry = time.Second, 5 * time.Minute

// refuse records why there is no Deployment, and schedules a retry.
func (r *revision) refuse(failure *workload.Failure) {
	r.refused = failure
	r.failures++
	if r.retry != nil {
		r.retry.Stop()
	}
	var timer clock.Timer
	timer = r.runtime.clock.AfterFunc(backoff.Delay(r.failures, firstRetry, maxRetry), func() {
		// The clock may hold its lock during this call, so the revision's lock is acquired in another goroutine.
		go func() {
			r.Lock()
			defer r.Unlock()
			if r.retry == timer {
				r.retry, r.resolution = nil, nil
				r.Notify()
			}
		}()
	})
	r.retry = timer
}

// deploymentChanged handles a Deployment from the watch.
func (rt *Runtime) deploymentChanged(deployment *appsv1.Deployment, gone bool) {
	key, ok := keyOf(deployment)
	if !ok || deployment.Name != DeploymentName(key.Name) {
		return
	}
	r := rt.revisions.LockOrCreate(key)
	defer r.Unlock()
	if !gone {
		r.setDeployment(deployment)
		return
	}
	if r.deployment != nil && r.deployment.UID == deployment.UID {
		if own := r.own(); own != nil {
			r.wanted = own.Spec.Replicas
		}
		r.deployment, r.requested = nil, nil
		// The Deployment must be created again.
		r.Notify()
	}
}

// Observe returns the State of the Revision.
func (r *revision) Observe() *workload.State {
	if r.removed && len(r.podsOf(r.uid)) == 0 {
		r.reset()
		r.uid, r.removed = "", false
	}
	if r.uid == "" {
		return nil
	}
	return r.observed()
}

// Unused reports whether the Revision is unknown and has no objects on the host.
func (r *revision) Unused() bool { return r.uid == "" && r.deployment == nil && len(r.pods) == 0 }

// Deleted implements revisions.Revision.
func (r *revision) Deleted() {}

// podsOf returns the Pods of a Revision, oldest first, including Pods from before a restore.
func (r *revision) podsOf(uid types.UID) []*pod {
	pods := slices.SortedFunc(maps.Values(r.pods), oldestFirst)
	return slices.DeleteFunc(pods, func(p *pod) bool { return p.Labels[podspec.RevisionUIDLabelKey] != string(origin.UID(uid)) })
}

func (r *revision) observed() *workload.State {
	state := &workload.State{UID: r.uid, Desired: ptr.Deref(r.wanted, 0), Failure: r.refused, Resolving: r.resolving}
	if url := r.runtime.options.LogURL; url != nil {
		state.LogURL = url(r.Key)
	}
	pods := r.podsOf(r.uid)
	for _, p := range pods {
		if ready := p.ready(); ready || p.draining() {
			state.Instances = append(state.Instances, workload.Instance{Name: p.Name, Address: p.address, Draining: !ready})
			if ready {
				state.Ready++
			}
		}
	}
	own := r.own()
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

// drained reports that a draining backend has no requests left.
func (r *revision) drained(backend string) {
	for _, p := range r.pods {
		if p.Name == backend && p.draining() {
			p.drained()
		}
	}
}

// podChanged handles a Pod from the watch.
func (rt *Runtime) podChanged(object *corev1.Pod, gone bool) {
	key, ok := keyOf(object)
	if !ok {
		return
	}
	r := rt.revisions.LockOrCreate(key)
	defer r.Unlock()
	p := r.pods[object.UID]
	if gone {
		if p != nil {
			p.stopTasks()
			delete(r.pods, object.UID)
		}
		return
	}
	if p == nil {
		p = newPod()
		r.pods[object.UID] = p
	}
	p.update(object)
	r.updateTasks(rt.ctx, p)
}

// updateTasks starts or stops the tasks of a Pod.
func (r *revision) updateTasks(ctx context.Context, p *pod) {
	p.probing.run(ctx, p.wantsProbe(), func(ctx context.Context) { r.probe(ctx, p) })
	p.inspecting.run(ctx, p.creating(), func(ctx context.Context) { r.inspect(ctx, p) })
}
