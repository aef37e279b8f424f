// Package resources makes the objects that a Service owns.
package resources

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// childMeta returns the metadata of an object that a Service owns: the Service's name, its labels, its annotations
// without some keys, and the label that names the Service (serving 7.1-1 to 7.1-4, 7.0.1-1).
func childMeta(service *servingv1.Service, without ...string) metav1.ObjectMeta {
	labels := make(map[string]string, len(service.Labels)+1)
	maps.Copy(labels, service.Labels)
	labels[servingv1.ServiceLabelKey] = service.Name

	annotations := maps.Clone(service.Annotations)
	// kubectl's last applied configuration describes the Service, not the child.
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	for _, key := range without {
		delete(annotations, key)
	}
	return metav1.ObjectMeta{
		Namespace:       service.Namespace,
		Name:            service.Name,
		Labels:          labels,
		Annotations:     annotations,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(service, servingv1.SchemeGroupVersion.WithKind("Service"))},
	}
}

// copyLabels replaces the labels and annotations of existing by those in desired (serving 7.1-5). The other fields of its metadata
// belong to the server and to other controllers.
func copyLabels(existing, desired *metav1.ObjectMeta) {
	existing.Labels, existing.Annotations = desired.Labels, desired.Annotations
}
