package v1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateRoute returns all errors of a new Route after defaulting (serving 9.3).
func ValidateRoute(r *Route, _ Settings) field.ErrorList {
	errs := validateMetadata(&r.ObjectMeta)
	errs = append(errs, validateRouteMetadata(r)...)
	errs = append(errs, validateOwnerLabel(&r.ObjectMeta, ServiceLabelKey, "Service")...)
	return append(errs, validateTraffic(r.Spec.Traffic, validateRouteTarget, field.NewPath("spec", "traffic"))...)
}

// ValidateRouteUpdate returns all errors of a Route, after defaulting, that replaces old. It omits the same checks as
// ValidateServiceUpdate.
func ValidateRouteUpdate(r, old *Route, _ Settings) field.ErrorList {
	specChanged := !equality.Semantic.DeepEqual(r.Spec, old.Spec)
	errs := validateRouteMetadata(r)
	errs = append(errs, validateUserAnnotations(&r.ObjectMeta, &old.ObjectMeta, specChanged, field.NewPath("metadata", "annotations"))...)
	errs = append(errs, validateOwnerLabelUpdate(&r.ObjectMeta, &old.ObjectMeta, ServiceLabelKey, "Service")...)
	if r.DeletionTimestamp != nil && !specChanged {
		return errs
	}
	return append(errs, validateTraffic(r.Spec.Traffic, validateRouteTarget, field.NewPath("spec", "traffic"))...)
}

func validateRouteMetadata(r *Route) field.ErrorList {
	errs := validateOwnAnnotations(r.Annotations, field.NewPath("metadata", "annotations"))
	return append(errs, validateVisibility(r.Labels)...)
}

// validateTraffic validates a traffic distribution: percents sum to 100 (serving 10.2-9), tags are unique. An empty one means its
// default. destination validates the destination of a target.
func validateTraffic(traffic []TrafficTarget, destination func(*TrafficTarget, *field.Path) field.ErrorList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	tags := sets.New[string]()
	sum, inRange := int64(0), true
	for i := range traffic {
		target, at := &traffic[i], path.Index(i)
		errs = append(errs, destination(target, at)...)
		errs = append(errs, validateTarget(target, at)...)
		if target.Tag != "" && tags.Has(target.Tag) {
			errs = append(errs, field.Duplicate(at.Child("tag"), target.Tag))
		}
		tags.Insert(target.Tag)
		if target.Percent == nil {
			continue
		}
		if percent := *target.Percent; percent < 0 || percent > 100 {
			inRange = false
			errs = append(errs, field.Invalid(at.Child("percent"), percent, validation.InclusiveRangeError(0, 100)))
		} else {
			sum += percent
		}
	}
	// A percent out of range is reported separately, and makes the sum meaningless.
	if len(traffic) > 0 && inRange && sum != 100 {
		errs = append(errs, field.Invalid(path, sum, fmt.Sprintf("percents must sum to 100, not %d", sum)))
	}
	return errs
}

// validateTarget validates a target of any traffic distribution (serving 10.2).
func validateTarget(target *TrafficTarget, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if target.Tag != "" {
		for _, msg := range validation.IsDNS1035Label(target.Tag) {
			errs = append(errs, field.Invalid(path.Child("tag"), target.Tag, msg))
		}
	}
	errs = append(errs, validateTargetName(target.RevisionName, path.Child("revisionName"))...)
	if latest := target.LatestRevision; latest != nil && *latest != (target.RevisionName == "") {
		msg := "must be true when revisionName is empty"
		if *latest {
			msg = "must be false when revisionName is set"
		}
		errs = append(errs, field.Invalid(path.Child("latestRevision"), *latest, msg))
	}
	if target.URL != "" {
		errs = append(errs, field.Forbidden(path.Child("url"), "may not be set in spec, only status has it"))
	}
	return errs
}

func validateTargetName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return nil
	}
	var errs field.ErrorList
	for _, msg := range apivalidation.NameIsDNS1035Label(name, false) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

// validateRouteTarget checks that a target of a Route names a Revision or a Configuration (serving 10.2-1, 10.2-2).
func validateRouteTarget(target *TrafficTarget, path *field.Path) field.ErrorList {
	switch {
	case target.RevisionName == "" && target.ConfigurationName == "":
		return field.ErrorList{field.Required(path, "must set exactly one of revisionName and configurationName")}
	case target.RevisionName != "" && target.ConfigurationName != "":
		return field.ErrorList{field.Forbidden(path.Child("configurationName"), "may not be set together with revisionName")}
	default:
		return validateTargetName(target.ConfigurationName, path.Child("configurationName"))
	}
}

// validateServiceTarget checks that a target of a Service omits the Configuration, which is the Service's own (serving 10.2-2).
func validateServiceTarget(target *TrafficTarget, path *field.Path) field.ErrorList {
	if target.ConfigurationName == "" {
		return nil
	}
	return field.ErrorList{field.Forbidden(path.Child("configurationName"),
		"may not be set in a Service, whose own Configuration is meant when revisionName is empty")}
}
