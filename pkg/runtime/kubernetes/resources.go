package kubernetes

import (
	"cmp"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/runtime"
)

const (
	// RevisionLabelKey on Deployments and Pods holds the name of their Revision.
	RevisionLabelKey = servingv1.GroupName + "/revision"
	// RevisionUIDLabelKey on Deployments and Pods holds the original UID of their Revision, which restores preserve.
	RevisionUIDLabelKey = servingv1.GroupName + "/revisionUID"
	// warningAnnotationKey on Deployments says in what they are not as asked for.
	warningAnnotationKey = servingv1.GroupName + "/warning"

	appLabelKey = "app"
)

// notForPods are labels and annotations of Revisions that change, or say nothing about a Pod.
var notForPods = []string{
	servingv1.RoutingStateLabelKey, servingv1.RoutingStateModifiedAnnotationKey, servingv1.RoutesAnnotationKey,
	servingv1.NoGCAnnotationKey, servingv1.CreatorAnnotationKey, servingv1.LastModifierAnnotationKey,
	corev1.LastAppliedConfigAnnotation,
}

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

// newDeployment returns the Deployment of a Revision, with nothing but the user's containers in it (serving 7.3). It is
// written once: a Revision does not change, and what runs of it is not restarted because this server was upgraded.
func newDeployment(revision *servingv1.Revision, p plan) *appsv1.Deployment {
	annotations := metadata(revision.Annotations)
	if p.images.warning != "" {
		annotations[warningAnnotationKey] = p.images.warning
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Name:        DeploymentName(revision.Name),
			Namespace:   revision.Namespace,
			Labels:      labelsOf(revision),
			Annotations: annotations,
			// The host's garbage collector finds the owner through aggregation.
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(revision, servingv1.SchemeGroupVersion.WithKind("Revision"))},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(p.replicas),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{RevisionUIDLabelKey: string(origin.UID(revision.UID))}},
			Template: newTemplate(revision, p),
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: ptr.To(intstr.FromInt32(0)), MaxSurge: ptr.To(intstr.FromString("25%"))},
			},
			RevisionHistoryLimit:    ptr.To[int32](0),
			ProgressDeadlineSeconds: ptr.To(progressDeadline(revision, p.progressDeadline)),
		},
	}
}

func newTemplate(revision *servingv1.Revision, p plan) corev1.PodTemplateSpec {
	spec := revision.Spec.PodSpec.DeepCopy()
	seconds := ptr.Deref(revision.Spec.TimeoutSeconds, servingv1.DefaultTimeoutSeconds)
	spec.TerminationGracePeriodSeconds = ptr.To(seconds)
	if spec.RuntimeClassName == nil && p.runtimeClass != "" {
		spec.RuntimeClassName = ptr.To(p.runtimeClass)
	}
	if spec.Affinity == nil && p.spread {
		spec.Affinity = spreadOverNodes(revision.Name)
	}
	serving := servingContainer(spec.Containers)
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		complete(c, &p.images)
		if servingv1.IsNativeSidecar(c) {
			// The kubelet ends it after the other containers, so it is not held.
			setEnvironment(c, revision, false)
			SetProbes(c)
		}
		restrict(c, spec.SecurityContext, p.images.of(c.Name), p.images.restricted)
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		complete(c, &p.images)
		if i == serving {
			serve(c)
		}
		setEnvironment(c, revision, i == serving)
		SetProbes(c)
		hold(c, runtime.Key{Namespace: revision.Namespace, Name: revision.Name}, seconds, &p)
		restrict(c, spec.SecurityContext, p.images.of(c.Name), p.images.restricted)
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labelsOf(revision), Annotations: metadata(revision.Annotations)},
		Spec:       *spec,
	}
}

// spreadOverNodes makes the scheduler prefer nodes that run no Pod of the Revision yet.
func spreadOverNodes(revision string) *corev1.Affinity {
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
			Weight: 100,
			PodAffinityTerm: corev1.PodAffinityTerm{
				TopologyKey:   corev1.LabelHostname,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{RevisionLabelKey: revision}},
			},
		}},
	}}
}

// metadata returns those labels or annotations of a Revision that are for its Pods.
func metadata(of map[string]string) map[string]string {
	kept := make(map[string]string, len(of)+3)
	maps.Copy(kept, of)
	for _, key := range notForPods {
		delete(kept, key)
	}
	return kept
}

func labelsOf(revision *servingv1.Revision) map[string]string {
	labels := metadata(revision.Labels)
	labels[RevisionLabelKey] = revision.Name
	labels[RevisionUIDLabelKey] = string(origin.UID(revision.UID))
	if _, ok := labels[appLabelKey]; !ok {
		labels[appLabelKey] = revision.Name
	}
	return labels
}

// servingContainer is the index of the container that has a port, which may be left out where there is one.
func servingContainer(containers []corev1.Container) int {
	for i := range containers {
		if len(containers[i].Ports) > 0 {
			return i
		}
	}
	return 0
}

// servingPort is the port that takes requests.
func servingPort(containers []corev1.Container) int32 {
	for i := range containers {
		if len(containers[i].Ports) > 0 {
			return cmp.Or(containers[i].Ports[0].ContainerPort, servingv1.DefaultContainerPort)
		}
	}
	return servingv1.DefaultContainerPort
}

func complete(c *corev1.Container, images *resolution) {
	if image := images.of(c.Name); image != nil {
		c.Image = image.Reference
	}
	// Why a container has ended is in its status then, for the Revision's to tell.
	c.TerminationMessagePolicy = cmp.Or(c.TerminationMessagePolicy, corev1.TerminationMessageFallbackToLogsOnError)
}

// serve has a container take requests.
func serve(c *corev1.Container) {
	if len(c.Ports) == 0 {
		c.Ports = []corev1.ContainerPort{{Protocol: corev1.ProtocolTCP}}
	}
	port := &c.Ports[0]
	port.ContainerPort = cmp.Or(port.ContainerPort, servingv1.DefaultContainerPort)
	if c.ReadinessProbe == nil {
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
	}
}

// setEnvironment puts the variables of the runtime contract first, so that the user's may refer to them (serving 10.5).
func setEnvironment(c *corev1.Container, revision *servingv1.Revision, serving bool) {
	env := []corev1.EnvVar{
		{Name: "K_SERVICE", Value: revision.Labels[servingv1.ServiceLabelKey]},
		{Name: "K_CONFIGURATION", Value: revision.Labels[servingv1.ConfigurationLabelKey]},
		{Name: "K_REVISION", Value: revision.Name},
	}
	if serving {
		env = append(env, corev1.EnvVar{Name: "PORT", Value: strconv.Itoa(int(c.Ports[0].ContainerPort))})
	}
	c.Env = append(env, c.Env...)
}

// progressDeadline is how long the Deployment may take to get anywhere, in seconds.
func progressDeadline(revision *servingv1.Revision, otherwise time.Duration) int32 {
	deadline := otherwise
	if own, err := time.ParseDuration(revision.Annotations[servingv1.ProgressDeadlineAnnotationKey]); err == nil && own > 0 {
		deadline = own
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
func keyOf(object metav1.Object) (runtime.Key, bool) {
	name := object.GetLabels()[RevisionLabelKey]
	return runtime.Key{Namespace: object.GetNamespace(), Name: name}, name != ""
}
