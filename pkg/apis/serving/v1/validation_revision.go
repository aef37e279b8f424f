package v1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateRevision returns all faults of a new Revision, whose defaults are filled (serving 9.4).
func ValidateRevision(r *Revision, st Settings) field.ErrorList {
	errs := validateMetadata(&r.ObjectMeta)
	annotations := field.NewPath("metadata", "annotations")
	errs = append(errs, validateDurationAnnotations(r.Annotations, annotations)...)
	errs = append(errs, validateAutoscaling(r.Annotations, st, annotations)...)
	errs = append(errs, validateOwnerLabel(&r.ObjectMeta, ConfigurationLabelKey, "Configuration")...)
	return append(errs, validateRevisionSpec(&r.Spec, st, field.NewPath("spec"))...)
}

// ValidateRevisionUpdate returns all faults of a Revision that replaces old. The spec may not change, so it
// is not checked again: rules may have come since it was made. What Kubernetes asks of the metadata of every
// object is left to the registry, which checks it on each update.
func ValidateRevisionUpdate(r, old *Revision) field.ErrorList {
	annotations := field.NewPath("metadata", "annotations")
	errs := validateDurationAnnotations(r.Annotations, annotations)
	// Whether a start without instances was allowed, and how many there may be, was decided when the revision
	// was made.
	errs = append(errs, validateAutoscaling(r.Annotations, Settings{AllowZeroInitialScale: true}, annotations)...)
	errs = append(errs, validateOwnerLabelUpdate(&r.ObjectMeta, &old.ObjectMeta, ConfigurationLabelKey, "Configuration")...)
	if !equality.Semantic.DeepEqual(r.Spec, old.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			"may not change, a changed template makes a new Revision (-old +new):\n"+describeChange(old.Spec, r.Spec)))
	}
	return errs
}

// validateTemplate checks the template that Revisions are made from (serving 10.3).
func validateTemplate(t *RevisionTemplateSpec, parent *metav1.ObjectMeta, st Settings, creating bool, path *field.Path) field.ErrorList {
	errs := validateTemplateMetadata(&t.ObjectMeta, parent, st, creating, path.Child("metadata"))
	return append(errs, validateRevisionSpec(&t.Spec, st, path.Child("spec"))...)
}

// validateNameChange checks that a template with a revision name of the user's own gets another name
// whenever it changes, because the named Revision cannot.
func validateNameChange(t, old *RevisionTemplateSpec, path *field.Path) field.ErrorList {
	if t.Name == "" || t.Name != old.Name || equality.Semantic.DeepEqual(t, old) {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("metadata", "name"), t.Name,
		"must change when the template changes (-old +new):\n"+describeChange(old, t))}
}

// validateRevisionSpec checks what a revision runs and how it takes requests (serving 9.4.2).
func validateRevisionSpec(s *RevisionSpec, st Settings, path *field.Path) field.ErrorList {
	errs := validatePodSpec(&s.PodSpec, st.Features, path)
	if n := s.ContainerConcurrency; n != nil {
		errs = append(errs, validateContainerConcurrency(*n, st, path.Child("containerConcurrency"))...)
	}
	errs = append(errs, validateTimeouts(s, st.MaxTimeoutSeconds, path)...)
	return errs
}

// validateContainerConcurrency checks how many requests an instance may be given at a time (serving 9.4.2-4).
func validateContainerConcurrency(n int64, st Settings, path *field.Path) field.ErrorList {
	if n == 0 && !st.AllowZeroContainerConcurrency {
		return field.ErrorList{field.Invalid(path, n, fmt.Sprintf(
			"must be between 1 and %d, inclusive, because allow-container-concurrency-zero in config-defaults is off", st.MaxContainerConcurrency))}
	}
	return validateRange(n, 0, st.MaxContainerConcurrency, path)
}

// validateTimeouts checks how long requests may take (serving 9.4.2-3): no part of a request may be given
// longer than the whole.
func validateTimeouts(s *RevisionSpec, longest int64, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	limit, bound := longest, fmt.Sprint(longest)
	if n := s.TimeoutSeconds; n != nil {
		errs = validateRange(*n, 1, longest, path.Child("timeoutSeconds"))
		if len(errs) == 0 {
			limit, bound = *n, fmt.Sprintf("timeoutSeconds (%d)", *n)
		}
	}
	for _, part := range []struct {
		name    string
		seconds *int64
	}{
		{"responseStartTimeoutSeconds", s.ResponseStartTimeoutSeconds},
		{"idleTimeoutSeconds", s.IdleTimeoutSeconds},
	} {
		if n := part.seconds; n != nil && (*n < 0 || *n > limit) {
			errs = append(errs, field.Invalid(path.Child(part.name), *n, "must be between 0 and "+bound+", inclusive"))
		}
	}
	return errs
}

// validateRange checks a number against inclusive bounds.
func validateRange(n, lower, upper int64, path *field.Path) field.ErrorList {
	if n >= lower && n <= upper {
		return nil
	}
	return field.ErrorList{field.Invalid(path, n, fmt.Sprintf("must be between %d and %d, inclusive", lower, upper))}
}
