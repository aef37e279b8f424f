package kubernetes

import (
	"math"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

// warningAnnotationKey on Deployments says in what they are not as asked for.
const warningAnnotationKey = servingv1.GroupName + "/warning"

// DeploymentName is the name of the one Deployment of a Revision.
func DeploymentName(revision string) string { return revision + "-deployment" }

// plan is what a Deployment follows from, besides the Revision.
type plan struct {
	images   resolution
	replicas int32
	// progressDeadline holds where the Revision says nothing about it.
	progressDeadline time.Duration
	// runtimeClass and spread hold where the Revision says nothing about them.
	runtimeClass string
	spread       bool
	// drainHost and drainPort are where the kubelet asks whether a Pod has drained; the host may be empty.
	drainHost string
	drainPort int32
}

// pod returns what the Pods of the Deployment follow from.
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

// newDeployment returns the Deployment of a Revision, with nothing but the user's containers in it (serving 7.3). It is
// written once: a Revision does not change, and what runs of it is not restarted because this server was upgraded.
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
			// The host's garbage collector finds the owner through aggregation.
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

// progressDeadline is how long the Deployment may take to get anywhere, in seconds.
func progressDeadline(revision *servingv1.Revision, otherwise time.Duration) int32 {
	deadline := otherwise
	if own := servingv1.DurationAnnotation(revision.Annotations, servingv1.ProgressDeadlineAnnotationKey); own != nil && *own > 0 {
		deadline = *own
	}
	return int32(min(max(math.Ceil(deadline.Seconds()), 1), math.MaxInt32))
}

// statuses are the images of containers, as the status of a Revision has them: those by a tag have no digest.
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

// keyOf names the Revision of an object of its namespace.
func keyOf(object metav1.Object) (workload.Key, bool) {
	name := object.GetLabels()[podspec.RevisionLabelKey]
	return workload.Key{Namespace: object.GetNamespace(), Name: name}, name != ""
}
