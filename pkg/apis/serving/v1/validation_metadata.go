package v1

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateMetadata validates the metadata of a new Service, Configuration, Route or Revision by the rules of Kubernetes for every
// object; its name and generateName must be DNS-1035 labels.
func validateMetadata(meta *metav1.ObjectMeta) field.ErrorList {
	return apivalidation.ValidateObjectMeta(meta, true, apivalidation.NameIsDNS1035Label, field.NewPath("metadata"))
}

// validateOwnAnnotations validates the annotations of a Service, Configuration or Route itself. Autoscaling annotations have no
// effect there, and are rejected rather than ignored.
func validateOwnAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(key, AutoscalingGroupName+"/") {
			errs = append(errs, field.Forbidden(path.Key(key), "must be put under spec.template.metadata.annotations"))
		}
	}
	if value, ok := annotations[InvocationAnnotationKey]; ok && value != InvocationRBAC && value != InvocationOpen {
		errs = append(errs, field.NotSupported(path.Key(InvocationAnnotationKey), value, []string{InvocationOpen, InvocationRBAC}))
	}
	return append(errs, validateDurationAnnotations(annotations, path)...)
}

// validateDurationAnnotations validates rollout-duration and progress-deadline: whole seconds, zero or more.
func validateDurationAnnotations(annotations map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	rolloutKey := RolloutDurationAnnotationKey
	if _, ok := annotations[rolloutKey]; !ok {
		rolloutKey = RolloutDurationLegacyAnnotationKey
	}
	for _, key := range []string{rolloutKey, ProgressDeadlineAnnotationKey} {
		value, ok := annotations[key]
		if !ok {
			continue
		}
		switch d, err := time.ParseDuration(value); {
		case err != nil:
			errs = append(errs, field.Invalid(path.Key(key), value, "must be a duration such as '90s' or '2m'"))
		case d < 0:
			errs = append(errs, field.Invalid(path.Key(key), value, "must be greater than or equal to 0s"))
		case d%time.Second != 0:
			errs = append(errs, field.Invalid(path.Key(key), value, wholeSeconds))
		}
	}
	return errs
}

// validateUserAnnotations checks that an update does not change the creator and the last modifier. Objects with an owner are exempt:
// their annotations are copies of the owner's.
func validateUserAnnotations(meta, old *metav1.ObjectMeta, specChanged bool, path *field.Path) field.ErrorList {
	if len(meta.OwnerReferences) > 0 {
		return nil
	}
	var errs field.ErrorList
	if value := meta.Annotations[CreatorAnnotationKey]; value != old.Annotations[CreatorAnnotationKey] {
		errs = append(errs, field.Invalid(path.Key(CreatorAnnotationKey), value, apivalidation.FieldImmutableErrorMsg))
	}
	if value := meta.Annotations[LastModifierAnnotationKey]; !specChanged && value != old.Annotations[LastModifierAnnotationKey] {
		errs = append(errs, field.Invalid(path.Key(LastModifierAnnotationKey), value, "may not change unless the spec changes"))
	}
	return errs
}

// validateOwnerLabel validates a label with the name of the object's owner: the controller reference must name the same object of
// this group, of the given kind.
func validateOwnerLabel(meta *metav1.ObjectMeta, key, ownerKind string) field.ErrorList {
	name, ok := meta.Labels[key]
	if !ok {
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(meta); owner != nil && owner.Kind == ownerKind && owner.Name == name {
		if gv, err := schema.ParseGroupVersion(owner.APIVersion); err == nil && gv.Group == GroupName {
			return nil
		}
	}
	return field.ErrorList{field.Invalid(field.NewPath("metadata", "labels").Key(key), name,
		fmt.Sprintf("may only name the %s that controls this object; metadata.ownerReferences must hold it with controller: true", ownerKind))}
}

// validateOwnerLabelUpdate is like validateOwnerLabel for new or changed labels. An unchanged label may outlive its owner: the
// garbage collector removes owner references when an owner is deleted without its dependents.
func validateOwnerLabelUpdate(meta, old *metav1.ObjectMeta, key, ownerKind string) field.ErrorList {
	if value, ok := old.Labels[key]; ok && value == meta.Labels[key] {
		return nil
	}
	return validateOwnerLabel(meta, key, ownerKind)
}

// validateVisibility validates the label that makes an address cluster-local: a misspelt value would make it public.
func validateVisibility(labels map[string]string) field.ErrorList {
	value, ok := labels[VisibilityLabelKey]
	if !ok || value == VisibilityClusterLocal {
		return nil
	}
	return field.ErrorList{field.NotSupported(field.NewPath("metadata", "labels").Key(VisibilityLabelKey), value,
		[]string{VisibilityClusterLocal})}
}

// validateTemplateMetadata validates the metadata that the Revision copies from its template (serving 10.3-1). parent is the metadata
// of the Configuration, or of the Service that creates it.
func validateTemplateMetadata(meta, parent *metav1.ObjectMeta, st Settings, creating bool, path *field.Path) field.ErrorList {
	errs := validateOwnRevisionName(meta, parent, creating, path)
	errs = append(errs, metav1validation.ValidateLabels(meta.Labels, path.Child("labels"))...)
	annotations := path.Child("annotations")
	errs = append(errs, apivalidation.ValidateAnnotations(meta.Annotations, annotations)...)
	if _, ok := meta.Annotations[InvocationAnnotationKey]; ok {
		errs = append(errs, field.Forbidden(annotations.Key(InvocationAnnotationKey), "must be put under metadata.annotations of the Service or Route"))
	}
	errs = append(errs, validateDurationAnnotations(meta.Annotations, annotations)...)
	return append(errs, validateAutoscaling(meta.Annotations, st, annotations)...)
}

// validateOwnRevisionName validates a revision name that the user chose. It must start with the Configuration's name, which the user
// does not know while the server is generating it.
func validateOwnRevisionName(meta, parent *metav1.ObjectMeta, creating bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if meta.GenerateName != "" {
		for _, msg := range apivalidation.NameIsDNS1035Label(meta.GenerateName, true) {
			errs = append(errs, field.Invalid(path.Child("generateName"), meta.GenerateName, msg))
		}
	}
	if meta.Name == "" {
		return errs
	}
	name := path.Child("name")
	faults := apivalidation.NameIsDNS1035Label(meta.Name, false)
	for _, msg := range faults {
		errs = append(errs, field.Invalid(name, meta.Name, msg))
	}
	prefixed := parent.Name != "" && strings.HasPrefix(meta.Name, parent.Name+"-")
	switch {
	case meta.GenerateName != "":
		errs = append(errs, field.Forbidden(name, "may not be set together with generateName"))
	case creating && parent.GenerateName != "" && !prefixed:
		errs = append(errs, field.Forbidden(name, "may not be set when metadata.generateName is used to create the object"))
	case len(faults) == 0 && parent.Name != "" && !prefixed:
		errs = append(errs, field.Invalid(name, meta.Name, fmt.Sprintf("must start with '%s-'", parent.Name)))
	}
	return errs
}
