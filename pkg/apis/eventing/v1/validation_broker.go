package v1

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// ValidateBroker returns the errors of a Broker: its class must be set, and its configuration must be a complete reference or an
// empty one, which means the system's options (eventing Broker Lifecycle). Any class is allowed; other controllers implement
// foreign classes.
func ValidateBroker(b *Broker) field.ErrorList {
	metadata, spec := field.NewPath("metadata"), field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&b.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, metadata)
	if b.Annotations[BrokerClassAnnotationKey] == "" {
		errs = append(errs, field.Required(metadata.Child("annotations").Key(BrokerClassAnnotationKey),
			"must name the class of the Broker"))
	}
	errs = append(errs, duckv1.ValidateDeadLetterStore(b.Annotations, metadata.Child("annotations"))...)
	errs = append(errs, b.validatePartitions(metadata.Child("annotations"))...)
	if config := b.Spec.Config; config != nil && *config != (duckv1.KReference{}) {
		errs = append(errs, config.Validate(spec.Child("config"))...)
	}
	return append(errs, b.Spec.Delivery.Validate(spec.Child("delivery"))...)
}

// ValidateNewBroker returns the errors of a new Broker: the errors of ValidateBroker, and a configuration in another namespace if
// the settings do not allow it.
func ValidateNewBroker(b *Broker, st Settings) field.ErrorList {
	errs := ValidateBroker(b)
	config := b.Spec.Config
	if config != nil && config.Namespace != "" && config.Namespace != b.Namespace && st.of(b.Namespace).OwnNamespace {
		errs = append(errs, field.Invalid(field.NewPath("spec", "config", "namespace"), config.Namespace,
			"must be the namespace of the Broker, as the operator decided"))
	}
	return errs
}

// ValidateBrokerUpdate returns the errors of a Broker that replaces old: the errors of ValidateBroker, changes of the
// immutable class or configuration (eventing Broker Lifecycle), and fewer partitions.
func ValidateBrokerUpdate(b, old *Broker) field.ErrorList {
	errs := append(ValidateBroker(b), b.validateFewerPartitions(old, field.NewPath("metadata", "annotations"))...)
	// A removed class is reported as missing.
	if class := b.Annotations[BrokerClassAnnotationKey]; class != "" {
		errs = append(errs, duckv1.ValidateImmutable(class, old.Annotations[BrokerClassAnnotationKey],
			field.NewPath("metadata", "annotations").Key(BrokerClassAnnotationKey))...)
	}
	return append(errs, duckv1.ValidateImmutable(b.Spec.Config, old.Spec.Config, field.NewPath("spec", "config"))...)
}
