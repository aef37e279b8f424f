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

// ValidateChannel returns the errors of a Channel: its template must name a kind, and its subscribers must be complete and distinct
// (eventing Channel v1 spec, duckv1.SubscriberSpec). Any kind is allowed; other controllers implement foreign kinds. It does not
// check permissions to write spec.subscribers.
func ValidateChannel(c *Channel) field.ErrorList {
	errs := validateChannel(c)
	return append(errs, validateTemplateDelivery(c.Spec.ChannelTemplate, field.NewPath("spec", "channelTemplate"))...)
}

// validateChannel returns the errors of a Channel except in the delivery options of its template.
func validateChannel(c *Channel) field.ErrorList {
	spec := field.NewPath("spec")
	errs := apivalidation.ValidateObjectMeta(&c.ObjectMeta, true, apivalidation.NameIsDNSLabel, field.NewPath("metadata"))
	errs = append(errs, duckv1.ValidateDeadLetterStore(c.Annotations, field.NewPath("metadata", "annotations"))...)
	errs = append(errs, validateChannelTemplate(c.Spec.ChannelTemplate, spec.Child("channelTemplate"))...)
	errs = append(errs, validateSubscribers(c.Spec.Subscribers, spec.Child("subscribers"))...)
	return append(errs, c.Spec.Delivery.Validate(spec.Child("delivery"))...)
}

// ValidateChannelUpdate returns the errors of a Channel that replaces old: the errors of ValidateChannel, and a change of the
// immutable template (eventing Channel Lifecycle). The template's delivery options may have been stored when they had no effect.
func ValidateChannelUpdate(c, old *Channel) field.ErrorList {
	errs := validateChannel(c)
	// A removed template is reported as missing.
	if c.Spec.ChannelTemplate == nil {
		return errs
	}
	return append(errs, duckv1.ValidateImmutable(c.Spec.ChannelTemplate, old.Spec.ChannelTemplate,
		field.NewPath("spec", "channelTemplate"))...)
}

// validateChannelTemplate returns the errors of the reference to an implementation. After defaulting, every Channel
// has one.
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

// validateTemplateDelivery returns the errors of the delivery options in the parameters of a template.
func validateTemplateDelivery(t *ChannelTemplateSpec, path *field.Path) field.ErrorList {
	_, errs := t.delivery(path)
	return errs
}

// isObjectOrUnset reports whether raw JSON is empty or an object.
func isObjectOrUnset(raw *runtime.RawExtension) bool {
	if raw == nil || len(raw.Raw) == 0 {
		return true
	}
	var object map[string]json.RawMessage
	return json.Unmarshal(raw.Raw, &object) == nil && object != nil
}

// validateSubscribers returns the errors of subscribers. Their uids, which identify them, must be distinct.
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
