package v1alpha1

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

const (
	// maxRate bounds the rate of an EventRun, in events per second.
	maxRate = 100_000
	// maxSelected bounds a selected value of an attribute, in bytes.
	maxSelected = 4096
)

// ValidateRedrive returns the errors of a request for a redrive.
func ValidateRedrive(r *Redrive) field.ErrorList {
	errs := validateRate(r.Rate, field.NewPath("rate"))
	errs = append(errs, r.Destination.Validate(field.NewPath("destination"))...)
	return append(errs, validateSelector(r.Selector, field.NewPath("selector"))...)
}

// ValidateReplay returns the errors of a request for a replay.
func ValidateReplay(r *Replay) (errs field.ErrorList) {
	if r.From != nil && r.To != nil && !r.From.Before(r.To) {
		errs = append(errs, field.Invalid(field.NewPath("from"), r.From.UTC().Format(time.RFC3339Nano), "must be before `to`"))
	}
	errs = append(errs, validateRate(r.Rate, field.NewPath("rate"))...)
	return append(errs, validateSelector(r.Selector, field.NewPath("selector"))...)
}

func validateRate(rate *int32, path *field.Path) field.ErrorList {
	if rate != nil && (*rate < 1 || *rate > maxRate) {
		return field.ErrorList{field.Invalid(path, *rate, fmt.Sprintf("must be between 1 and %d events per second", maxRate))}
	}
	return nil
}

func validateSelector(s *EventSelector, path *field.Path) (errs field.ErrorList) {
	if s == nil {
		return nil
	}
	if s.ID == "" && s.Source == "" && s.Type == "" && len(s.Filters) == 0 {
		return field.ErrorList{field.Required(path, "must have at least one of `id`, `source`, `type` and `filters`; omit it to select all events")}
	}
	for _, attribute := range []struct{ name, value string }{{"id", s.ID}, {"source", s.Source}, {"type", s.Type}} {
		if len(attribute.value) > maxSelected {
			errs = append(errs, field.TooLong(path.Child(attribute.name), attribute.value, maxSelected))
		}
	}
	return append(errs, eventingv1.ValidateFilters(s.Filters, path.Child("filters"))...)
}

// ValidateEventRun returns the errors of a new EventRun.
func ValidateEventRun(r *EventRun) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&r.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	spec := field.NewPath("spec")
	if r.Spec.Target.Kind == "" {
		errs = append(errs, field.Required(spec.Child("target", "kind"), ""))
	}
	if r.Spec.Target.Name == "" {
		errs = append(errs, field.Required(spec.Child("target", "name"), ""))
	}
	redrive, replay := r.Spec.Redrive, r.Spec.Replay
	switch {
	case redrive == nil && replay == nil:
		errs = append(errs, field.Required(spec.Child("redrive"), "or `replay`"))
	case redrive != nil && replay != nil:
		errs = append(errs, field.Forbidden(spec.Child("replay"), "may not be combined with `redrive`"))
	case redrive != nil:
		errs = append(errs, validateRate(redrive.Rate, spec.Child("redrive", "rate"))...)
		errs = append(errs, validateSelector(redrive.Selector, spec.Child("redrive", "selector"))...)
		errs = append(errs, redrive.Destination.Validate(spec.Child("redrive", "destination"))...)
	default:
		path := spec.Child("replay")
		if replay.Broker == "" {
			errs = append(errs, field.Required(path.Child("broker"), ""))
		}
		if replay.From != nil && !replay.From.Before(&replay.To) {
			errs = append(errs, field.Invalid(path.Child("from"), replay.From.UTC().Format(time.RFC3339Nano), "must be before `to`"))
		}
		errs = append(errs, validateRate(replay.Rate, path.Child("rate"))...)
		errs = append(errs, validateSelector(replay.Selector, path.Child("selector"))...)
	}
	return errs
}

// ValidateEventRunUpdate returns the errors of an EventRun that replaces old: only its metadata may change.
func ValidateEventRunUpdate(r, old *EventRun) field.ErrorList {
	if !equality.Semantic.DeepEqual(r.Spec, old.Spec) {
		return field.ErrorList{field.Forbidden(field.NewPath("spec"), "may not change; delete the EventRun to cancel it, and create another one by the subresource `redrive` or `replay`")}
	}
	return nil
}
