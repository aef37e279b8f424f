package podtemplate

import (
	"cmp"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/runtime/kubernetes"
)

// podFor returns the Pod that a template describes, complete enough for the host to judge. Its containers have the
// security context that they are given where their images allow it: whether these do is not known yet.
func podFor(name, namespace string, template *servingv1.RevisionTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			// A name of its own: refusals by admission can then be told from refusals by authorization.
			Name:        name + "-dry-run",
			Namespace:   namespace,
			Labels:      template.Labels,
			Annotations: template.Annotations,
		},
		Spec: *template.Spec.PodSpec.DeepCopy(),
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		port := servingv1.DefaultContainerPort
		if len(c.Ports) > 0 {
			port = c.Ports[0].ContainerPort
		}
		for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
			setProbePort(probe, port)
		}
	}
	kubernetes.Restrict(&pod.Spec)
	return pod
}

// identify gives a Pod the labels that tell those of an object's Revisions from others, which the host may judge them by.
func identify(pod *corev1.Pod, kind string, object metav1.Object, template *servingv1.RevisionTemplateSpec) {
	name := object.GetName()
	labels := map[string]string{
		"app": name, kubernetes.RevisionLabelKey: cmp.Or(template.Name, name), servingv1.ConfigurationLabelKey: name,
	}
	if owner := metav1.GetControllerOfNoCopy(object); kind == "Service" || owner != nil && owner.Kind == "Service" {
		// A Configuration is named like its Service.
		labels[servingv1.ServiceLabelKey] = name
	}
	maps.Copy(labels, pod.Labels)
	pod.Labels = labels
}

// setProbePort replaces the port 0 of a probe, which stands for the container's.
func setProbePort(probe *corev1.Probe, port int32) {
	if probe == nil {
		return
	}
	zero, own := intstr.FromInt32(0), intstr.FromInt32(port)
	if probe.HTTPGet != nil && probe.HTTPGet.Port == zero {
		probe.HTTPGet.Port = own
	}
	if probe.TCPSocket != nil && probe.TCPSocket.Port == zero {
		probe.TCPSocket.Port = own
	}
	if probe.GRPC != nil && probe.GRPC.Port == 0 {
		probe.GRPC.Port = port
	}
}
