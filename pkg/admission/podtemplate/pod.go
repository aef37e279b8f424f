package podtemplate

import (
	"cmp"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

// dryRun returns the Pod that the workload would create for the next Revision of an object, with a name that distinguishes
// rejections by admission, which name the Pod, from rejections by authorization. The images are not resolved yet, and the
// Pod is built for a namespace of the restricted Pod Security level: its containers have the security context that Revisions
// use if their images allow it.
func dryRun(kind, namespace string, object metav1.Object, template *servingv1.RevisionTemplateSpec, defaults Defaults) *corev1.Pod {
	revision := revisionOf(kind, namespace, object, template)
	var options podspec.Options
	if defaults != nil {
		options.RuntimeClass, options.Spread = defaults(revision.Labels)
	}
	options.Restricted, options.LocalHooks = true, true
	pod := podspec.New(revision, options)
	pod.Name, pod.Namespace = object.GetName()+"-dry-run", namespace
	return &corev1.Pod{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
}

// revisionOf returns the next Revision of an object as far as its Pods depend on it. Policies of the host may select Pods by
// its labels.
func revisionOf(kind, namespace string, object metav1.Object, template *servingv1.RevisionTemplateSpec) *servingv1.Revision {
	name := object.GetName()
	labels := maps.Clone(template.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[servingv1.ConfigurationLabelKey] = name
	if owner := metav1.GetControllerOfNoCopy(object); kind == "Service" || owner != nil && owner.Kind == "Service" {
		// A Configuration is named like its Service.
		labels[servingv1.ServiceLabelKey] = name
	}
	return &servingv1.Revision{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: cmp.Or(template.Name, name), Labels: labels, Annotations: template.Annotations},
		Spec:       template.Spec,
	}
}

// anonymous returns the Pod that dryRun returns for every object with this template, whatever its name.
func anonymous(kind, namespace string, template *servingv1.RevisionTemplateSpec, defaults Defaults) *corev1.Pod {
	unnamed := template.DeepCopy()
	unnamed.Name = ""
	return dryRun(kind, namespace, &metav1.ObjectMeta{}, unnamed, defaults)
}

// contractVariables returns the number of environment variables that a Pod has before the user's in one of its containers.
func contractVariables(template *servingv1.RevisionTemplateSpec, pod *corev1.Pod, init bool, container int) int {
	built, own := pod.Spec.Containers, template.Spec.Containers
	if init {
		built, own = pod.Spec.InitContainers, template.Spec.InitContainers
	}
	if container >= len(own) {
		return 0
	}
	return len(built[container].Env) - len(own[container].Env)
}
