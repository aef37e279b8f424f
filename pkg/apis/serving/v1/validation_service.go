package v1

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateService returns all faults of a new Service, whose defaults are filled (serving 9.1).
func ValidateService(s *Service, st Settings) field.ErrorList {
	errs := validateMetadata(&s.ObjectMeta)
	errs = append(errs, validateServiceMetadata(s)...)
	return append(errs, validateServiceSpec(s, st, true)...)
}

// ValidateServiceUpdate returns all faults of a Service, whose defaults are filled, that replaces old. What
// Kubernetes asks of the metadata of every object is left to the registry, which checks it on each update.
// The spec of a Service that is being deleted is only checked if it changes, or else a rule that came after
// the object would keep its finalizers from being removed.
func ValidateServiceUpdate(s, old *Service, st Settings) field.ErrorList {
	specChanged := !equality.Semantic.DeepEqual(s.Spec, old.Spec)
	errs := validateServiceMetadata(s)
	errs = append(errs, validateUserAnnotations(&s.ObjectMeta, &old.ObjectMeta, specChanged, field.NewPath("metadata", "annotations"))...)
	if s.DeletionTimestamp != nil && !specChanged {
		return errs
	}
	errs = append(errs, validateServiceSpec(s, st, false)...)
	return append(errs, validateNameChange(&s.Spec.Template, &old.Spec.Template, field.NewPath("spec", "template"))...)
}

func validateServiceMetadata(s *Service) field.ErrorList {
	errs := validateOwnAnnotations(s.Annotations, field.NewPath("metadata", "annotations"))
	return append(errs, validateVisibility(s.Labels)...)
}

// validateServiceSpec checks the template as that of the Configuration, which has the Service's name.
func validateServiceSpec(s *Service, st Settings, creating bool) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateTemplate(&s.Spec.Template, &s.ObjectMeta, st, creating, spec.Child("template"))
	return append(errs, validateTraffic(s.Spec.Traffic, validateServiceTarget, spec.Child("traffic"))...)
}
