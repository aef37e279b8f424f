package resources

import servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"

// Configuration returns a Service's Configuration (serving 7.1-1), without the annotations about rollouts and callers. The template
// was defaulted when the Service was written.
func Configuration(service *servingv1.Service) *servingv1.Configuration {
	return &servingv1.Configuration{
		ObjectMeta: childMeta(service, servingv1.InvocationAnnotationKey, servingv1.RolloutDurationAnnotationKey, servingv1.RolloutDurationLegacyAnnotationKey),
		Spec:       *service.Spec.ConfigurationSpec.DeepCopy(),
	}
}

// UpdateConfiguration returns a copy of a Service's existing Configuration with the desired state of the Service
// (serving 7.1-2, 7.1-5).
func UpdateConfiguration(existing *servingv1.Configuration, service *servingv1.Service) *servingv1.Configuration {
	desired := Configuration(service)
	updated := existing.DeepCopy()
	copyLabels(&updated.ObjectMeta, &desired.ObjectMeta)
	updated.Spec = desired.Spec
	// The server does the same, so that the stored object can be compared.
	updated.Spec.Template.Spec.KeepCreateDefaults(&existing.Spec.Template.Spec)
	return updated
}
