package v1

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// ValidateBroker returns the faults of a Broker: its class is set, and its configuration is a complete
// reference or an empty one, which means the system's (eventing Broker Lifecycle). Any class is allowed; those
// we do not serve are left to their own controllers.
func ValidateBroker(b *Broker) field.ErrorList {
	metadata, spec := field.NewPath("metadata"), field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&b.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, metadata)
	if b.Annotations[BrokerClassAnnotationKey] == "" {
		errs = append(errs, field.Required(metadata.Child("annotations").Key(BrokerClassAnnotationKey),
			"must name the class of the Broker"))
	}
	if config := b.Spec.Config; config != nil && *config != (duckv1.KReference{}) {
		errs = append(errs, config.Validate(spec.Child("config"))...)
	}
	return append(errs, b.Spec.Delivery.Validate(spec.Child("delivery"))...)
}

// ValidateNewBroker returns the faults of a Broker to be created: those of the Broker itself, and a configuration
// of another namespace where settings do not allow it.
func ValidateNewBroker(b *Broker, st Settings) field.ErrorList {
	errs := ValidateBroker(b)
	config := b.Spec.Config
	if config != nil && config.Namespace != "" && config.Namespace != b.Namespace && st.of(b.Namespace).OwnNamespace {
		errs = append(errs, field.Invalid(field.NewPath("spec", "config", "namespace"), config.Namespace,
			"must be the namespace of the Broker, as the operator decided"))
	}
	return errs
}

// ValidateBrokerUpdate returns the faults of a Broker that replaces old: those of the Broker itself, and
// changes of its class or configuration, which are immutable (eventing Broker Lifecycle).
func ValidateBrokerUpdate(b, old *Broker) field.ErrorList {
	errs := ValidateBroker(b)
	// A class that is taken away is reported as missing.
	if class := b.Annotations[BrokerClassAnnotationKey]; class != "" {
		errs = append(errs, duckv1.ValidateImmutable(class, old.Annotations[BrokerClassAnnotationKey],
			field.NewPath("metadata", "annotations").Key(BrokerClassAnnotationKey))...)
	}
	return append(errs, duckv1.ValidateImmutable(b.Spec.Config, old.Spec.Config, field.NewPath("spec", "config"))...)
}
