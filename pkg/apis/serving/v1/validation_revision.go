package v1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateRevision returns all errors of a new Revision after defaulting (serving 9.4).
func ValidateRevision(r *Revision, st Settings) field.ErrorList {
	errs := validateMetadata(&r.ObjectMeta)
	annotations := field.NewPath("metadata", "annotations")
	errs = append(errs, validateDurationAnnotations(r.Annotations, annotations)...)
	errs = append(errs, validateAutoscaling(r.Annotations, st, annotations)...)
	errs = append(errs, validateOwnerLabel(&r.ObjectMeta, ConfigurationLabelKey, "Configuration")...)
	return append(errs, validateRevisionSpec(&r.Spec, st, field.NewPath("spec"))...)
}

// ValidateRevisionUpdate returns all errors of a Revision that replaces old. The immutable spec is not validated again, because rules
// may have been added since the Revision was created. The registry validates the metadata on each update.
func ValidateRevisionUpdate(r, old *Revision) field.ErrorList {
	annotations := field.NewPath("metadata", "annotations")
	errs := validateDurationAnnotations(r.Annotations, annotations)
	// The permission to start without backends, and the limit of their number, were decided when the Revision was created.
	errs = append(errs, validateAutoscaling(r.Annotations, Settings{AllowZeroInitialScale: true}, annotations)...)
	errs = append(errs, validateOwnerLabelUpdate(&r.ObjectMeta, &old.ObjectMeta, ConfigurationLabelKey, "Configuration")...)
	if !equality.Semantic.DeepEqual(r.Spec, old.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			"may not change, a changed template creates a new Revision (-old +new):\n"+describeChange(old.Spec, r.Spec)))
	}
	return errs
}

// validateTemplate validates the template of Revisions (serving 10.3).
func validateTemplate(t *RevisionTemplateSpec, parent *metav1.ObjectMeta, st Settings, creating bool, path *field.Path) field.ErrorList {
	errs := validateTemplateMetadata(&t.ObjectMeta, parent, st, creating, path.Child("metadata"))
	return append(errs, validateRevisionSpec(&t.Spec, st, path.Child("spec"))...)
}

// validateNameChange checks that the revision name of a template, if set by the user, changes whenever the template does, because the
// named Revision is immutable.
func validateNameChange(t, old *RevisionTemplateSpec, path *field.Path) field.ErrorList {
	if t.Name == "" || t.Name != old.Name || equality.Semantic.DeepEqual(t, old) {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("metadata", "name"), t.Name,
		"must change when the template changes (-old +new):\n"+describeChange(old, t))}
}

// validateRevisionSpec validates the spec of a Revision (serving 9.4.2).
func validateRevisionSpec(s *RevisionSpec, st Settings, path *field.Path) field.ErrorList {
	errs := validatePodSpec(&s.PodSpec, st.Features, path)
	if n := s.ContainerConcurrency; n != nil {
		errs = append(errs, validateContainerConcurrency(*n, st, path.Child("containerConcurrency"))...)
	}
	errs = append(errs, validateTimeouts(s, st.MaxTimeoutSeconds, path)...)
	return errs
}

// validateContainerConcurrency validates the maximum number of concurrent requests per backend (serving 9.4.2-4).
func validateContainerConcurrency(n int64, st Settings, path *field.Path) field.ErrorList {
	if n == 0 && !st.AllowZeroContainerConcurrency {
		return field.ErrorList{field.Invalid(path, n, fmt.Sprintf(
			"must be between 1 and %d, inclusive, because allow-container-concurrency-zero in config-defaults is off", st.MaxContainerConcurrency))}
	}
	return validateRange(n, 0, st.MaxContainerConcurrency, path)
}

// validateTimeouts validates the timeouts of requests (serving 9.4.2-3): the timeout of a part of a request must not exceed the
// timeout of the whole.
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

// validateRange validates a number against inclusive bounds.
func validateRange(n, lower, upper int64, path *field.Path) field.ErrorList {
	if n >= lower && n <= upper {
		return nil
	}
	return field.ErrorList{field.Invalid(path, n, fmt.Sprintf("must be between %d and %d, inclusive", lower, upper))}
}
