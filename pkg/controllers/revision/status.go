package revision

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// Reasons of a Revision's conditions. The reasons of failures come from the runtime.
const (
	ReasonDeploying                = "Deploying"
	ReasonResolvingDigests         = "ResolvingDigests"
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"
	ReasonQueued                   = "Queued"
	ReasonNoTraffic                = "NoTraffic"
)

// ConditionImagesResolved reports whether a Revision runs its images by the digests that their tags had when it was created. Its
// severity is Warning, so that Ready does not depend on it. It is absent unless an image was unresolved.
const ConditionImagesResolved duckv1.ConditionType = "ImagesResolved"

// ReasonImagesUnresolved means that an image runs by its tag, which may refer to another image later.
const ReasonImagesUnresolved = "ImagesUnresolved"

// resolvingShown is the time after which the status reports that digests are being resolved. Most take less, which saves a write.
// Creation times are in whole seconds.
const resolvingShown = 2 * time.Second

// startedAnnotationKey in status is "true" on a Revision that has been ready and whose containers fail now.
const startedAnnotationKey = servingv1.GroupName + "/started"

// The minimum times between two writes of a changed scale. The time is longer before a Revision is ready for the first time: its next
// write should report readiness.
const (
	startedScaleInterval  = time.Second
	startingScaleInterval = 10 * time.Second
)

// dependents are the conditions that Ready depends on; the first one that fails determines the reason.
var dependents = []duckv1.ConditionType{servingv1.RevisionConditionResourcesAvailable, servingv1.RevisionConditionContainerHealthy}

// facts determine a Revision's status, together with its previous status.
type facts struct {
	revision *servingv1.Revision
	// state is nil while the runtime has not observed the Revision.
	state *workload.State
	// initial is the number of instances that must have been ready once.
	initial int32
	// deadline is the time that it may take to be ready for the first time.
	deadline time.Duration
	// since is the time at which this process began to run Revisions.
	since, now time.Time
}

// observe returns the status that follows from facts, and the time after which it changes without a change of the facts, or 0.
func observe(f facts) (servingv1.RevisionStatus, time.Duration) {
	before := &f.revision.Status
	status := *before.DeepCopy()
	resources, healthy, next := f.health(before)
	wasStarted := started(before)
	if state := f.state; state != nil {
		status.ActualReplicas, status.DesiredReplicas = ptr.To(state.Ready), ptr.To(state.Desired)
		if state.LogURL != "" {
			status.LogURL = state.LogURL
		}
		if len(state.Containers) > 0 {
			status.ContainerStatuses, status.InitContainerStatuses = state.Containers, state.InitContainers
		}
	}
	rememberStart(&status, wasStarted && healthy.Status != corev1.ConditionTrue)
	isStarted := wasStarted || healthy.Status == corev1.ConditionTrue
	found := []duckv1.Condition{resources, healthy, f.active(before, isStarted)}
	if condition := f.imagesResolved(before); condition != nil {
		found = append(found, *condition)
	}
	reconciler.Observe(&status.Status, f.revision.Generation, metav1.NewTime(f.now), dependents, found...)
	return status, next
}

// health returns ResourcesAvailable and ContainerHealthy. A ready instance makes both True; a failure persists until an instance is
// ready. Scaling to zero is not a failure: a Revision that was ready stays ready.
func (f *facts) health(before *servingv1.RevisionStatus) (resources, healthy duckv1.Condition, next time.Duration) {
	resources = reconciler.True(servingv1.RevisionConditionResourcesAvailable)
	healthy = reconciler.True(servingv1.RevisionConditionContainerHealthy)
	wasStarted := started(before)
	reason, changes := f.deploying()
	deploying := func(t duckv1.ConditionType) duckv1.Condition { return reconciler.Unknown(t, reason, "") }
	switch {
	case f.reached(wasStarted):
	case f.state != nil && f.state.Failure != nil:
		failure := f.state.Failure
		if !failure.Resources {
			healthy = reconciler.False(healthy.Type, failure.Reason, failure.Message)
			break
		}
		resources = reconciler.False(resources.Type, failure.Reason, failure.Message)
		if !wasStarted {
			healthy = deploying(healthy.Type)
		}
	case failed(before.Conditions.Get(resources.Type)), failed(before.Conditions.Get(healthy.Type)):
		resources = reconciler.Repeat(resources.Type, before.Conditions.Get(resources.Type))
		healthy = reconciler.Repeat(healthy.Type, before.Conditions.Get(healthy.Type))
	case wasStarted, f.initial == 0:
	default:
		resources, healthy = deploying(resources.Type), deploying(healthy.Type)
		if next = f.begun().Add(f.deadline).Sub(f.now); next <= 0 {
			next = 0
			resources = reconciler.False(resources.Type, ReasonProgressDeadlineExceeded,
				fmt.Sprintf("Initial scale was never achieved. The revision did not become ready within %v (%s).", f.deadline, servingv1.ProgressDeadlineAnnotationKey))
		} else if changes > 0 {
			next = min(next, changes)
		}
	}
	return resources, healthy, next
}

// begun returns the time at which the Revision began to become ready, as far as this process knows.
func (f *facts) begun() time.Time {
	if begun := f.revision.CreationTimestamp.Time; begun.After(f.since) {
		return begun
	}
	return f.since
}

// deploying returns the reason why the Revision is not ready yet, and the time after which the reason changes, or 0.
func (f *facts) deploying() (reason string, changes time.Duration) {
	if f.state == nil || !f.state.Resolving {
		return ReasonDeploying, 0
	}
	if changes = f.begun().Add(resolvingShown).Sub(f.now); changes > 0 {
		return ReasonDeploying, changes
	}
	return ReasonResolvingDigests, 0
}

// imagesResolved returns the ImagesResolved condition, or nil if it is absent.
func (f *facts) imagesResolved(before *servingv1.RevisionStatus) *duckv1.Condition {
	previous := before.Conditions.Get(ConditionImagesResolved)
	var condition duckv1.Condition
	switch {
	case f.state != nil && f.state.Warning != "":
		condition = reconciler.False(ConditionImagesResolved, ReasonImagesUnresolved, f.state.Warning)
	case previous == nil || f.state == nil || len(f.state.Containers) == 0:
		// The previous condition stays until the runtime has resolved the images.
		return nil
	default:
		condition = reconciler.True(ConditionImagesResolved)
	}
	condition.Severity = duckv1.ConditionSeverityWarning
	return &condition
}

// reached reports whether enough instances are ready for requests: at first as many as the initial scale, unless the autoscaler
// requests fewer; later one.
func (f *facts) reached(wasStarted bool) bool {
	return f.state != nil && f.state.Ready > 0 && (wasStarted || f.state.Ready >= min(f.initial, f.state.Desired))
}

// active returns the Active condition, which does not affect Ready.
func (f *facts) active(before *servingv1.RevisionStatus, isStarted bool) duckv1.Condition {
	active := reconciler.Unknown(servingv1.RevisionConditionActive, ReasonQueued,
		"Requests to the target are being buffered as resources are provisioned.")
	previous := before.Conditions.Get(active.Type)
	switch {
	case f.state == nil && previous != nil:
		active = reconciler.Repeat(active.Type, previous)
	case f.state == nil || !isStarted:
	case f.state.Desired == 0:
		active = reconciler.False(active.Type, ReasonNoTraffic, "The target is not receiving traffic.")
	case f.state.Ready > 0:
		active = reconciler.True(active.Type)
	}
	active.Severity = duckv1.ConditionSeverityInfo
	return active
}

func failed(c *duckv1.Condition) bool { return c != nil && c.Status == corev1.ConditionFalse }

// started reports whether a Revision has been ready before.
func started(status *servingv1.RevisionStatus) bool {
	healthy := status.Conditions.Get(servingv1.RevisionConditionContainerHealthy)
	return healthy != nil && healthy.Status == corev1.ConditionTrue || status.Annotations[startedAnnotationKey] == "true"
}

// rememberStart records that a Revision has been ready, if its conditions do not show it.
func rememberStart(status *servingv1.RevisionStatus, remember bool) {
	if !remember {
		delete(status.Annotations, startedAnnotationKey)
		return
	}
	if status.Annotations == nil {
		status.Annotations = map[string]string{}
	}
	status.Annotations[startedAnnotationKey] = "true"
}

func scaleInterval(status *servingv1.RevisionStatus) time.Duration {
	if started(status) {
		return startedScaleInterval
	}
	return startingScaleInterval
}

// onlyScale reports whether two statuses of a Revision differ in scale only.
func onlyScale(before, after *servingv1.RevisionStatus) bool {
	a, b := before.DeepCopy(), after.DeepCopy()
	for _, status := range []*servingv1.RevisionStatus{a, b} {
		status.ActualReplicas, status.DesiredReplicas = nil, nil
		status.Conditions.Set(duckv1.Condition{Type: servingv1.RevisionConditionActive}, metav1.Time{})
		status.Conditions.Get(servingv1.RevisionConditionActive).LastTransitionTime = metav1.Time{}
	}
	return equality.Semantic.DeepEqual(a, b)
}
