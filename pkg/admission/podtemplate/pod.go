package podtemplate

import (
	"cmp"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/runtime/kubernetes"
)

// podFor returns the Pod that a template describes, complete enough for the host to validate. Its containers have the
// security context that Revisions use if their images allow it; the images are not resolved yet.
func podFor(name, namespace string, template *servingv1.RevisionTemplateSpec) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			// A specific name distinguishes rejections by admission, which name the Pod, from rejections by authorization.
			Name:        name + "-dry-run",
			Namespace:   namespace,
			Labels:      template.Labels,
			Annotations: template.Annotations,
		},
		Spec: *template.Spec.PodSpec.DeepCopy(),
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		ports := c.Ports
		if len(ports) == 0 {
			c.Ports = []corev1.ContainerPort{{ContainerPort: servingv1.DefaultContainerPort}}
		}
		kubernetes.SetProbes(c)
		c.Ports = ports
	}
	kubernetes.Restrict(&pod.Spec)
	return pod
}

// identify sets the labels of an object's Revisions on a Pod, because policies of the host may select by them.
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
