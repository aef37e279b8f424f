package v1

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns the errors of delivery options (eventing DeliverySpec). Nil means unset.
func (d *DeliverySpec) Validate(path *field.Path) field.ErrorList {
	if d == nil {
		return nil
	}
	errs := d.DeadLetterSink.Validate(path.Child("deadLetterSink"))
	if d.Retry != nil && *d.Retry < 0 {
		errs = append(errs, field.Invalid(path.Child("retry"), *d.Retry, "must be greater than or equal to 0"))
	}
	errs = append(errs, validateDuration(d.Timeout, true, path.Child("timeout"))...)
	errs = append(errs, validateEnum(d.BackoffPolicy, path.Child("backoffPolicy"), BackoffPolicyLinear, BackoffPolicyExponential)...)
	errs = append(errs, validateDuration(d.BackoffDelay, false, path.Child("backoffDelay"))...)
	errs = append(errs, validateDuration(d.RetryAfterMax, false, path.Child("retryAfterMax"))...)
	return append(errs, validateEnum(d.Format, path.Child("format"), FormatJSON, FormatBinary)...)
}

// Validate returns the errors of a subscriber in the spec of a channel: its uid identifies it, and its addresses are
// resolved, and therefore absolute (eventing duckv1.SubscriberSpec).
func (s *SubscriberSpec) Validate(path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	if s.UID == "" {
		errs = append(errs, field.Required(path.Child("uid"), "must be the uid of the Subscription"))
	}
	if s.SubscriberURI != "" {
		errs = append(errs, validateAbsoluteURL(s.SubscriberURI, path.Child("subscriberUri"))...)
	}
	errs = append(errs, validateCACerts(s.SubscriberCACerts, path.Child("subscriberCACerts"))...)
	if s.ReplyURI != "" {
		errs = append(errs, validateAbsoluteURL(s.ReplyURI, path.Child("replyUri"))...)
	}
	errs = append(errs, validateCACerts(s.ReplyCACerts, path.Child("replyCACerts"))...)
	return append(errs, s.Delivery.Validate(path.Child("delivery"))...)
}

// validateDuration returns the error of an ISO 8601 duration; if positive is set, it must be greater than zero.
func validateDuration(value *string, positive bool, path *field.Path) field.ErrorList {
	if value == nil {
		return nil
	}
	switch d, err := ParseDuration(*value); {
	case err != nil:
		return field.ErrorList{field.Invalid(path, *value, err.Error())}
	case positive && d == 0:
		return field.ErrorList{field.Invalid(path, *value, "must be greater than 0")}
	}
	return nil
}

// validateEnum returns the error of a value that is not supported.
func validateEnum[T ~string](value *T, path *field.Path, supported ...T) field.ErrorList {
	if value == nil || slices.Contains(supported, *value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, *value, supported)}
}
