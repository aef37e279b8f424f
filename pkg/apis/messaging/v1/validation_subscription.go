package v1

import (
	"cmp"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// channelKind is the kind of the channels that may have Subscriptions of other namespaces.
var channelKind = SchemeGroupVersion.WithKind("Channel").GroupKind()

// ChannelName returns the namespace and the name of the channel of a Subscription.
func (s *Subscription) ChannelName() types.NamespacedName {
	return types.NamespacedName{Namespace: cmp.Or(s.Spec.Channel.Namespace, s.Namespace), Name: s.Spec.Channel.Name}
}

// IsLinked reports whether the channel of a Subscription is in another namespace.
func (s *Subscription) IsLinked() bool { return s.ChannelName().Namespace != s.Namespace }

// ValidateSubscription returns the errors of a Subscription: it must name a channel, and a subscriber, a
// reply or both (eventing Subscription Lifecycle).
func ValidateSubscription(s *Subscription) field.ErrorList {
	metadata, spec := field.NewPath("metadata"), field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&s.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, metadata)
	errs = append(errs, duckv1.ValidateDeliveryOrder(s.Annotations, metadata.Child("annotations"))...)
	errs = append(errs, duckv1.ValidateDeadLetterStore(s.Annotations, metadata.Child("annotations"))...)
	errs = append(errs, validateSubscribedChannel(s.Spec.Channel, s.Namespace, spec.Child("channel"))...)
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
	return append(errs, duckv1.ValidateImmutable(identity(s), identity(old), field.NewPath("spec", "channel"))...)
}

// validateSubscribedChannel returns the errors of the channel of a Subscription in a namespace. It has no address, because events are not sent to
// it. Whether it may be in another namespace depends on settings and permissions.
func validateSubscribedChannel(channel duckv1.KReference, namespace string, path *field.Path) field.ErrorList {
	if channel == (duckv1.KReference{}) {
		return field.ErrorList{field.Required(path, "must name a channel by `apiVersion`, `kind` and `name`")}
	}
	var errs field.ErrorList
	kind := schema.FromAPIVersionAndKind(channel.APIVersion, channel.Kind).GroupKind()
	if channel.Namespace != "" && channel.Namespace != namespace && channel.APIVersion != "" && channel.Kind != "" && kind != channelKind {
		errs = append(errs, field.Forbidden(path.Child("namespace"), "may only be the Subscription's own namespace for a "+kind.String()+
			": Subscriptions of other namespaces receive events of a "+channelKind.String()+" only"))
	}
	if channel.Address != nil {
		errs = append(errs, field.Forbidden(path.Child("address"), "may not be set: a Subscription uses the channel as a whole"))
	}
	channel.Address = nil
	return append(errs, channel.Validate(path)...)
}

// identity returns the part of the channel reference of a Subscription that identifies the channel.
func identity(s *Subscription) duckv1.KReference {
	channel := s.Spec.Channel
	if channel.Address = nil; channel.Namespace == s.Namespace {
		channel.Namespace = ""
	}
	return channel
}
