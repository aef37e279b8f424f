package v1

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// ValidateSubscription returns the errors of a Subscription: it must name a channel of its own namespace, and a subscriber, a
// reply or both (eventing Subscription Lifecycle).
func ValidateSubscription(s *Subscription) field.ErrorList {
	metadata, spec := field.NewPath("metadata"), field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&s.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, metadata)
	errs = append(errs, duckv1.ValidateDeliveryOrder(s.Annotations, metadata.Child("annotations"))...)
	errs = append(errs, validateSubscribedChannel(s.Spec.Channel, spec.Child("channel"))...)
	if s.Spec.Subscriber == nil && s.Spec.Reply == nil {
		errs = append(errs, field.Required(spec.Child("subscriber"), "must have at least one of `subscriber` and `reply`"))
	}
	errs = append(errs, s.Spec.Subscriber.Validate(spec.Child("subscriber"))...)
	errs = append(errs, s.Spec.Reply.Validate(spec.Child("reply"))...)
	return append(errs, s.Spec.Delivery.Validate(spec.Child("delivery"))...)
}

// ValidateSubscriptionUpdate returns the errors of a Subscription that replaces old: the errors of ValidateSubscription, and a
// change of the immutable channel (eventing Subscription Lifecycle). All other fields may change.
func ValidateSubscriptionUpdate(s, old *Subscription) field.ErrorList {
	errs := ValidateSubscription(s)
	// A removed channel is reported as missing, fields that no channel may have as forbidden.
	if s.Spec.Channel == (duckv1.KReference{}) {
		return errs
	}
	return append(errs, duckv1.ValidateImmutable(identity(s.Spec.Channel), identity(old.Spec.Channel), field.NewPath("spec", "channel"))...)
}

// validateSubscribedChannel returns the errors of the channel of a Subscription. It has no namespace, because it is in the
// Subscription's (eventing Subscription Lifecycle), and no address, because events are not sent to it.
func validateSubscribedChannel(channel duckv1.KReference, path *field.Path) field.ErrorList {
	if channel == (duckv1.KReference{}) {
		return field.ErrorList{field.Required(path, "must name a channel by `apiVersion`, `kind` and `name`")}
	}
	var errs field.ErrorList
	if channel.Namespace != "" {
		errs = append(errs, field.Forbidden(path.Child("namespace"), "may not be set: a Subscription uses a channel of its own namespace"))
	}
	if channel.Address != nil {
		errs = append(errs, field.Forbidden(path.Child("address"), "may not be set: a Subscription uses the channel as a whole"))
	}
	named := identity(channel)
	return append(errs, named.Validate(path)...)
}

// identity returns the part of a channel reference that identifies the channel.
func identity(channel duckv1.KReference) duckv1.KReference {
	return duckv1.KReference{Kind: channel.Kind, Name: channel.Name, APIVersion: channel.APIVersion}
}
