// Package podspec builds the Pods of Revisions. It is pure: the workload creates these Pods, and admission sends them to
// the host cluster as a dry run.
package podspec

import (
	"cmp"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

const (
	// RevisionLabelKey on Deployments and Pods holds the name of their Revision.
	RevisionLabelKey = servingv1.GroupName + "/revision"
	// RevisionUIDLabelKey on Deployments and Pods holds the original UID of their Revision, which restores preserve.
	RevisionUIDLabelKey = servingv1.GroupName + "/revisionUID"
	// DrainPath is the prefix of the preStop hooks' paths: /drain/<namespace>/<revision>.
	DrainPath = "/drain/"

	appLabelKey = "app"
	// sleepSeconds is the duration of a preStop hook that cannot ask whether the Pod has drained: long enough for nearly
	// all requests, short enough for a Pod to stop.
	sleepSeconds = 10
)

// revisionOnly are labels and annotations of Revisions that change, or do not describe a Pod.
var revisionOnly = []string{
	servingv1.RoutingStateLabelKey, servingv1.RoutingStateModifiedAnnotationKey, servingv1.RoutesAnnotationKey,
	servingv1.NoGCAnnotationKey, servingv1.CreatorAnnotationKey, servingv1.LastModifierAnnotationKey,
	corev1.LastAppliedConfigAnnotation,
}

// Image describes the image of a container as far as it is known.
type Image struct {
	// Reference is by digest if the image is resolved.
	Reference string
	// NonRoot is true if the image runs as a numeric user other than root, MayBeRoot if it runs as root or an unknown user.
	NonRoot, MayBeRoot bool
}

// Options are the inputs to a Pod besides its Revision.
type Options struct {
	// Images are the images by container name. Other containers keep the image of the Revision.
	Images map[string]*Image
	// Restricted is true if the namespace admits only Pods of the restricted Pod Security level, LocalHooks if it rejects
	// hooks that call other hosts.
	Restricted, LocalHooks bool
	// RuntimeClass and Spread apply to Revisions without a runtime class or an affinity. Spread prefers nodes without a Pod
	// of the Revision.
	RuntimeClass string
	Spread       bool
	// DrainHost and DrainPort are the address at which the kubelet asks whether a Pod has drained. Without a host, containers
	// sleep before they stop.
	DrainHost string
	DrainPort int32
}

// New returns the Pod of a Revision: the user's containers and no others (serving 7.3).
func New(revision *servingv1.Revision, o Options) corev1.PodTemplateSpec {
	spec := revision.Spec.PodSpec.DeepCopy()
	seconds := ptr.Deref(revision.Spec.TimeoutSeconds, servingv1.DefaultTimeoutSeconds)
	spec.TerminationGracePeriodSeconds = ptr.To(seconds)
	if spec.RuntimeClassName == nil && o.RuntimeClass != "" {
		spec.RuntimeClassName = ptr.To(o.RuntimeClass)
	}
	if spec.Affinity == nil && o.Spread {
		spec.Affinity = spreadOverNodes(revision.Name)
	}
	serving := ServingContainer(spec.Containers)
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		complete(c, o.Images[c.Name])
		if servingv1.IsNativeSidecar(c) {
			// The kubelet stops it after the other containers, so it needs no preStop hook.
			setEnvironment(c, revision, false)
			setProbes(c)
		}
		restrict(c, spec.SecurityContext, o.Images[c.Name], o.Restricted)
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		complete(c, o.Images[c.Name])
		if i == serving {
			setServing(c)
		}
		setEnvironment(c, revision, i == serving)
		setProbes(c)
		setPreStop(c, revision, seconds, &o)
		restrict(c, spec.SecurityContext, o.Images[c.Name], o.Restricted)
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: Labels(revision), Annotations: Annotations(revision)},
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

// Labels returns the labels of the Deployment and the Pods of a Revision.
func Labels(revision *servingv1.Revision) map[string]string {
	labels := forPods(revision.Labels)
	labels[RevisionLabelKey] = revision.Name
	if uid := origin.UID(revision.UID); uid != "" {
		labels[RevisionUIDLabelKey] = string(uid)
	}
	if _, ok := labels[appLabelKey]; !ok {
		labels[appLabelKey] = revision.Name
	}
	return labels
}

// Annotations returns the annotations of the Deployment and the Pods of a Revision.
func Annotations(revision *servingv1.Revision) map[string]string {
	return forPods(revision.Annotations)
}

// forPods returns a copy of a Revision's labels or annotations without revisionOnly.
func forPods(of map[string]string) map[string]string {
	kept := make(map[string]string, len(of)+3)
	maps.Copy(kept, of)
	for _, key := range revisionOnly {
		delete(kept, key)
	}
	return kept
}

// ServingContainer returns the index of the container that has a port. The port of a single container may be omitted.
func ServingContainer(containers []corev1.Container) int {
	for i := range containers {
		if len(containers[i].Ports) > 0 {
			return i
		}
	}
	return 0
}

// ServingPort returns the port for requests.
func ServingPort(containers []corev1.Container) int32 {
	for i := range containers {
		if len(containers[i].Ports) > 0 {
			return cmp.Or(containers[i].Ports[0].ContainerPort, servingv1.DefaultContainerPort)
		}
	}
	return servingv1.DefaultContainerPort
}

// complete sets the image of a container, and the policy that fills its termination message.
func complete(c *corev1.Container, image *Image) {
	if image != nil {
		c.Image = image.Reference
	}
	c.TerminationMessagePolicy = cmp.Or(c.TerminationMessagePolicy, corev1.TerminationMessageFallbackToLogsOnError)
}

// setServing sets the port and the readiness probe of the container for requests.
func setServing(c *corev1.Container) {
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

// setPreStop delays SIGTERM while the Pod has requests in flight, for at most the request timeout: the kubelet calls
// DrainPath. If the namespace rejects such hooks, or no address is known, the container sleeps instead.
func setPreStop(c *corev1.Container, revision *servingv1.Revision, seconds int64, o *Options) {
	hook := &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: min(seconds, sleepSeconds)}}
	if o.DrainHost != "" && !o.LocalHooks {
		hook = &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
			Host: o.DrainHost, Port: intstr.FromInt32(o.DrainPort), Path: DrainPath + revision.Namespace + "/" + revision.Name, Scheme: corev1.URISchemeHTTP,
		}}
	}
	c.Lifecycle = &corev1.Lifecycle{PreStop: hook}
}
