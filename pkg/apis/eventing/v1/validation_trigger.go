package v1

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// DependencyAnnotationKey on a Trigger is a JSON ObjectReference to an object in its namespace that must be ready before the
// Trigger is.
const DependencyAnnotationKey = "knative.dev/dependency"

// brokerKind is the kind to which brokerRef may refer.
var brokerKind = SchemeGroupVersion.WithKind("Broker").GroupKind()

// ValidateTrigger returns the errors of a Trigger: it must name a Broker and a subscriber (eventing Trigger v1 spec), and its
// filters must be valid. filter is validated even if filters override it.
func ValidateTrigger(t *Trigger) field.ErrorList {
	return append(validateTrigger(t), ValidateFilters(t.Spec.Filters, field.NewPath("spec", "filters"))...)
}

// validateTrigger returns the errors of a Trigger except in its filters.
func validateTrigger(t *Trigger) field.ErrorList {
	metadata, spec := field.NewPath("metadata"), field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&t.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, metadata)
	errs = append(errs, validateDependency(t, metadata.Child("annotations").Key(DependencyAnnotationKey))...)
	errs = append(errs, duckv1.ValidateDeliveryOrder(t.Annotations, metadata.Child("annotations"))...)
	errs = append(errs, duckv1.ValidateDeadLetterStore(t.Annotations, metadata.Child("annotations"))...)
	errs = append(errs, validateBroker(&t.Spec, spec)...)
	if t.Spec.Filter != nil {
		errs = append(errs, validateAttributeNames(t.Spec.Filter.Attributes, spec.Child("filter", "attributes"))...)
	}
	errs = append(errs, t.Spec.Subscriber.Validate(spec.Child("subscriber"))...)
	return append(errs, t.Spec.Delivery.Validate(spec.Child("delivery"))...)
}

// validateBroker returns the errors of the Broker of a Trigger: exactly one of broker and brokerRef is required.
func validateBroker(s *TriggerSpec, spec *field.Path) field.ErrorList {
	broker, path := spec.Child("broker"), spec.Child("brokerRef")
	var errs field.ErrorList
	switch {
	case s.Broker == "" && s.BrokerRef == nil:
		return field.ErrorList{field.Required(broker, "must name a Broker of the same namespace")}
	case s.Broker != "" && s.BrokerRef != nil:
		errs = append(errs, field.Forbidden(path, "may not be set together with `broker`: exactly one of both is allowed"))
	}
	if s.Broker != "" {
		for _, message := range validation.IsDNS1123Subdomain(s.Broker) {
			errs = append(errs, field.Invalid(broker, s.Broker, message))
		}
	}
	ref := s.BrokerRef
	if ref == nil {
		return errs
	}
	errs = append(errs, ref.Validate(path)...)
	if kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind(); ref.APIVersion != "" && ref.Kind != "" && kind != brokerKind {
		errs = append(errs, field.Invalid(path.Child("kind"), kind.String(), "must be a Broker of the group '"+GroupName+"'"))
	}
	if ref.Address != nil {
		errs = append(errs, field.Forbidden(path.Child("address"), "may not be set: a Trigger uses the Broker as a whole"))
	}
	return errs
}

// ValidateTriggerUpdate returns the errors of a Trigger that replaces old: the errors of ValidateTrigger, and a change of the
// immutable broker (eventing Trigger Lifecycle). All other fields may change, brokerRef included. Unchanged filters may exceed limits that did not
// exist when they were stored.
func ValidateTriggerUpdate(t, old *Trigger) field.ErrorList {
	errs := validateTrigger(t)
	if !equality.Semantic.DeepEqual(t.Spec.Filters, old.Spec.Filters) {
		errs = append(errs, ValidateFilters(t.Spec.Filters, field.NewPath("spec", "filters"))...)
	}
	// A removed Broker is reported as missing.
	if t.Spec.Broker == "" && t.Spec.BrokerRef == nil {
		return errs
	}
	return append(errs, duckv1.ValidateImmutable(t.Spec.Broker, old.Spec.Broker, field.NewPath("spec", "broker"))...)
}

// validateDependency returns the errors of the dependency annotation.
func validateDependency(t *Trigger, path *field.Path) field.ErrorList {
	value, found := t.Annotations[DependencyAnnotationKey]
	if !found {
		return nil
	}
	var ref corev1.ObjectReference
	if err := json.Unmarshal([]byte(value), &ref); err != nil {
		return field.ErrorList{field.Invalid(path, value, "must be a JSON ObjectReference: "+err.Error())}
	}
	var errs field.ErrorList
	if ref.Namespace != "" && ref.Namespace != t.Namespace {
		errs = append(errs, field.Invalid(path.Child("namespace"), ref.Namespace,
			"must be empty or the namespace of the Trigger, '"+t.Namespace+"'"))
	}
	named := duckv1.KReference{Kind: ref.Kind, Name: ref.Name, APIVersion: ref.APIVersion}
	return append(errs, named.Validate(path)...)
}
