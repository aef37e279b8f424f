package podtemplate

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// podFor returns the Pod that a template describes, complete enough for the host to judge.
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
	return pod
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
