package v1alpha1

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// ValidateEventPolicy returns the errors of a new EventPolicy. oidc is true if senders are authenticated.
func ValidateEventPolicy(p *EventPolicy, oidc bool) field.ErrorList {
	errs := validateEventPolicy(p)
	if !oidc {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			"oidc-authentication feature not enabled: 'authentication-oidc' of the ConfigMap config-features must be 'enabled'"))
	}
	return append(errs, eventingv1.ValidatePolicyFilters(p.Spec.Filters, filtersPath())...)
}

// ValidateEventPolicyUpdate returns the errors of an EventPolicy that replaces old. All of spec may change, whether or not senders are
// authenticated. Unchanged filters may exceed limits that did not exist when they were stored.
func ValidateEventPolicyUpdate(p, old *EventPolicy) field.ErrorList {
	errs := validateEventPolicy(p)
	if !equality.Semantic.DeepEqual(p.Spec.Filters, old.Spec.Filters) {
		errs = append(errs, eventingv1.ValidatePolicyFilters(p.Spec.Filters, filtersPath())...)
	}
	return errs
}

func filtersPath() *field.Path { return field.NewPath("spec", "filters") }

// validateEventPolicy returns the errors of an EventPolicy except in its filters.
func validateEventPolicy(p *EventPolicy) field.ErrorList {
	metadata, spec := field.NewPath("metadata"), field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&p.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, metadata)
	for i := range p.Spec.To {
		errs = append(errs, validateTo(&p.Spec.To[i], spec.Child("to").Index(i))...)
	}
	for i := range p.Spec.From {
		errs = append(errs, validateFrom(&p.Spec.From[i], spec.Child("from").Index(i))...)
	}
	return errs
}

func validateTo(to *EventPolicySpecTo, path *field.Path) field.ErrorList {
	switch {
	case to.Ref != nil && to.Selector != nil:
		return field.ErrorList{field.Invalid(path, "ref, selector", "must have exactly one of `ref` and `selector`")}
	case to.Ref != nil:
		return duckv1.RequireReference(to.Ref.APIVersion, to.Ref.Kind, to.Ref.Name, path.Child("ref"))
	case to.Selector == nil:
		return field.ErrorList{field.Required(path, "must have exactly one of `ref` and `selector`")}
	}
	// As in Knative's releases, a selector may be incomplete: it selects nothing then.
	return nil
}

func validateFrom(from *EventPolicySpecFrom, path *field.Path) field.ErrorList {
	switch {
	case from.Ref != nil && from.Sub != nil:
		return field.ErrorList{field.Invalid(path, "ref, sub", "must have exactly one of `ref` and `sub`")}
	case from.Ref != nil:
		return duckv1.RequireReference(from.Ref.APIVersion, from.Ref.Kind, from.Ref.Name, path.Child("ref"))
	case from.Sub == nil || *from.Sub == "":
		return field.ErrorList{field.Required(path, "must have exactly one of `ref` and `sub`")}
	}
	if i := strings.IndexByte(*from.Sub, '*'); i >= 0 && i < len(*from.Sub)-1 {
		return field.ErrorList{field.Invalid(path.Child("sub"), *from.Sub, "'*' is only allowed as suffix")}
	}
	return nil
}
