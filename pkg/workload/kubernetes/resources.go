package kubernetes

import (
	"math"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

// warningAnnotationKey on Deployments holds the Warning of the State.
const warningAnnotationKey = servingv1.GroupName + "/warning"

// DeploymentName returns the name of a Revision's Deployment.
func DeploymentName(revision string) string { return revision + "-deployment" }

// plan holds the inputs to a Deployment besides the Revision.
type plan struct {
	images   resolution
	replicas int32
	// progressDeadline is the default for Revisions without one.
	progressDeadline time.Duration
	// runtimeClass and spread are defaults for Revisions without a runtime class or an affinity.
	runtimeClass string
	spread       bool
	// drainHost and drainPort are the address of DrainHandler; the host may be empty.
	drainHost string
	drainPort int32
}

// pod returns the inputs to the Pods of the Deployment.
func (p *plan) pod() podspec.Options {
	o := podspec.Options{
		Images: make(map[string]*podspec.Image, len(p.images.images)), Restricted: p.images.restricted, LocalHooks: p.images.local,
		RuntimeClass: p.runtimeClass, Spread: p.spread, DrainHost: p.drainHost, DrainPort: p.drainPort,
	}
	for container, image := range p.images.images {
		o.Images[container] = &podspec.Image{
			Reference: image.Reference, NonRoot: image.NonRoot(), MayBeRoot: !image.Known || image.Root(),
		}
	}
	return o
}

// newDeployment returns the Deployment of a Revision, with the user's containers and no others (serving 7.3). It is never
// updated: a Revision is immutable, and an upgrade of this server must not restart its Pods.
func newDeployment(revision *servingv1.Revision, p plan) *appsv1.Deployment {
	annotations := podspec.Annotations(revision)
	if p.images.warning != "" {
		annotations[warningAnnotationKey] = p.images.warning
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name:        DeploymentName(revision.Name),
			Namespace:   revision.Namespace,
			Labels:      podspec.Labels(revision),
			Annotations: annotations,
			// The host's garbage collector reads the owner through aggregation.
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(revision, servingv1.SchemeGroupVersion.WithKind("Revision"))},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(p.replicas),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{podspec.RevisionUIDLabelKey: string(origin.UID(revision.UID))}},
			Template: podspec.New(revision, p.pod()),
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromString("25%"))},
			},
			RevisionHistoryLimit:    ptr.To[int32](0),
			ProgressDeadlineSeconds: ptr.To(progressDeadline(revision, p.progressDeadline)),
		},
	}
}

// progressDeadline returns the time for the Deployment to make progress, in seconds.
func progressDeadline(revision *servingv1.Revision, otherwise time.Duration) int32 {
	deadline := otherwise
	if own := servingv1.DurationAnnotation(revision.Annotations, servingv1.ProgressDeadlineAnnotationKey); own != nil && *own > 0 {
		deadline = *own
	}
	return int32(min(max(math.Ceil(deadline.Seconds()), 1), math.MaxInt32))
}

// statuses returns the container statuses of a Revision. Images by tag have no digest.
func statuses(containers []corev1.Container) []servingv1.ContainerStatus {
	all := make([]servingv1.ContainerStatus, len(containers))
	for i := range containers {
		all[i].Name = containers[i].Name
		if strings.Contains(containers[i].Image, "@") {
			all[i].ImageDigest = containers[i].Image
		}
	}
	return all
}

// keyOf returns the key of the Revision that an object belongs to.
func keyOf(object metav1.Object) (types.NamespacedName, bool) {
	name := object.GetLabels()[podspec.RevisionLabelKey]
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: name}, name != ""
}
