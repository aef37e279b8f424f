package v1

import (
	"encoding/json"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// ValidateChannel returns the faults of a Channel: its template names a kind, and its subscribers are complete
// and distinct (eventing Channel v1 spec, duckv1.SubscriberSpec). Any kind is allowed; those we do not serve
// are left to their own controllers. Who may write spec.subscribers is not decided here.
func ValidateChannel(c *Channel) field.ErrorList {
	errs := validateChannel(c)
	return append(errs, validateTemplateDelivery(c.Spec.ChannelTemplate, field.NewPath("spec", "channelTemplate"))...)
}

// validateChannel returns the faults of a Channel except for the delivery options of its template.
func validateChannel(c *Channel) field.ErrorList {
	spec := field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&c.ObjectMeta, true, apivalidation.NameIsDNSLabel, field.NewPath("metadata"))
	errs = append(errs, validateChannelTemplate(c.Spec.ChannelTemplate, spec.Child("channelTemplate"))...)
	errs = append(errs, validateSubscribers(c.Spec.Subscribers, spec.Child("subscribers"))...)
	return append(errs, c.Spec.Delivery.Validate(spec.Child("delivery"))...)
}

// ValidateChannelUpdate returns the faults of a Channel that replaces old: those of the Channel itself, and a
// change of its template, which is immutable (eventing Channel Lifecycle). Delivery options in it may have been stored when
// they had no effect.
func ValidateChannelUpdate(c, old *Channel) field.ErrorList {
	errs := validateChannel(c)
	// A template that is taken away is reported as missing.
	if c.Spec.ChannelTemplate == nil {
		return errs
	}
	return append(errs, duckv1.ValidateImmutable(c.Spec.ChannelTemplate, old.Spec.ChannelTemplate,
		field.NewPath("spec", "channelTemplate"))...)
}

// validateChannelTemplate returns the faults of the choice of an implementation. Defaulting leaves no Channel
// without one.
func validateChannelTemplate(t *ChannelTemplateSpec, path *field.Path) field.ErrorList {
	if t == nil {
		return field.ErrorList{field.Required(path, "must name the kind that implements the Channel")}
	}
	errs := duckv1.ValidateTypeMeta(t.TypeMeta, path)
	if !isObjectOrUnset(t.Spec) {
		errs = append(errs, field.Invalid(path.Child("spec"), string(t.Spec.Raw), "must be a JSON object"))
	}
	return errs
}

// validateTemplateDelivery returns the faults of the delivery options among the parameters of a template.
func validateTemplateDelivery(t *ChannelTemplateSpec, path *field.Path) field.ErrorList {
	_, errs := t.delivery(path)
	return errs
}

// isObjectOrUnset reports whether raw JSON is that of an object, if there is any.
func isObjectOrUnset(raw *runtime.RawExtension) bool {
	if raw == nil || len(raw.Raw) == 0 {
		return true
	}
	var object map[string]json.RawMessage
	return json.Unmarshal(raw.Raw, &object) == nil && object != nil
}

// validateSubscribers returns the faults of subscribers. Their uids, which they are told by, are distinct.
func validateSubscribers(subscribers []duckv1.SubscriberSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[types.UID]()
	for i := range subscribers {
		s, at := &subscribers[i], path.Index(i)
		if s.UID != "" && seen.Has(s.UID) {
			errs = append(errs, field.Duplicate(at.Child("uid"), s.UID))
		}
		seen.Insert(s.UID)
		errs = append(errs, s.Validate(at)...)
	}
	return errs
}
