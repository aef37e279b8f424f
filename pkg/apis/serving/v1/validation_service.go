package v1

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateService returns all errors of a new Service after defaulting (serving 9.1).
func ValidateService(s *Service, st Settings) field.ErrorList {
	errs := validateMetadata(&s.ObjectMeta)
	errs = append(errs, validateServiceMetadata(s)...)
	return append(errs, validateServiceSpec(s, st, true)...)
}

// ValidateServiceUpdate returns all errors of a Service, after defaulting, that replaces old. The registry validates the metadata on
// each update. The spec of a Service that is being deleted is only validated if it changes; otherwise a rule that is newer than the
// object would prevent the removal of its finalizers.
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

// validateServiceSpec validates the template of the Configuration, which has the Service's name.
func validateServiceSpec(s *Service, st Settings, creating bool) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateTemplate(&s.Spec.Template, &s.ObjectMeta, st, creating, spec.Child("template"))
	return append(errs, validateTraffic(s.Spec.Traffic, validateServiceTarget, spec.Child("traffic"))...)
}
