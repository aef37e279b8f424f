package v1

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateConfiguration returns all errors of a new Configuration after defaulting (serving 9.2).
func ValidateConfiguration(c *Configuration, st Settings) field.ErrorList {
	errs := validateMetadata(&c.ObjectMeta)
	errs = append(errs, validateOwnAnnotations(c.Annotations, field.NewPath("metadata", "annotations"))...)
	errs = append(errs, validateOwnerLabel(&c.ObjectMeta, ServiceLabelKey, "Service")...)
	return append(errs, validateTemplate(&c.Spec.Template, &c.ObjectMeta, st, true, field.NewPath("spec", "template"))...)
}

// ValidateConfigurationUpdate returns all errors of a Configuration, after defaulting, that replaces old. It omits the same checks
// as ValidateServiceUpdate.
func ValidateConfigurationUpdate(c, old *Configuration, st Settings) field.ErrorList {
	specChanged := !equality.Semantic.DeepEqual(c.Spec, old.Spec)
	annotations := field.NewPath("metadata", "annotations")
	errs := validateOwnAnnotations(c.Annotations, annotations)
	errs = append(errs, validateUserAnnotations(&c.ObjectMeta, &old.ObjectMeta, specChanged, annotations)...)
	errs = append(errs, validateOwnerLabelUpdate(&c.ObjectMeta, &old.ObjectMeta, ServiceLabelKey, "Service")...)
	if c.DeletionTimestamp != nil && !specChanged {
		return errs
	}
	template := field.NewPath("spec", "template")
	errs = append(errs, validateTemplate(&c.Spec.Template, &c.ObjectMeta, st, false, template)...)
	return append(errs, validateNameChange(&c.Spec.Template, &old.Spec.Template, template)...)
}
