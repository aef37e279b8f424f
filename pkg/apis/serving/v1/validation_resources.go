package v1

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var resourcesMask = fieldMask{allowed: []string{"limits", "requests"}}

// validateResources validates the resource requests and limits of a container (serving 10.18).
func validateResources(r *corev1.ResourceRequirements, features Features, path *field.Path) field.ErrorList {
	errs := resourcesMask.validate(r, features, path)
	errs = append(errs, validateResourceList(r.Limits, path.Child("limits"))...)
	errs = append(errs, validateResourceList(r.Requests, path.Child("requests"))...)
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request := r.Requests[name]
		limit, limited := r.Limits[name]
		// A negative limit is reported separately.
		if limited && limit.Sign() >= 0 && request.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(path.Child("requests").Key(string(name)), request.String(),
				fmt.Sprintf("must be less than or equal to the %s limit of %s", name, limit.String())))
		}
	}
	return errs
}

func validateResourceList(list corev1.ResourceList, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(list)) {
		at := path.Key(string(name))
		for _, msg := range resourceNameFaults(string(name)) {
			errs = append(errs, field.Invalid(at, string(name), msg))
		}
		if quantity := list[name]; quantity.Sign() < 0 {
			errs = append(errs, field.Invalid(at, quantity.String(), "must be greater than or equal to 0"))
		}
	}
	return errs
}

// resourceNameFaults follows core/v1: only native resources have names without a domain.
func resourceNameFaults(name string) []string {
	if faults := validation.IsQualifiedName(name); len(faults) > 0 {
		return faults
	}
	native := []string{string(corev1.ResourceCPU), string(corev1.ResourceMemory), string(corev1.ResourceEphemeralStorage)}
	if strings.Contains(name, "/") || strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) || slices.Contains(native, name) {
		return nil
	}
	return []string{"must be one of " + strings.Join(native, ", ") + ", hugepages-<size>, or start with a domain"}
}
