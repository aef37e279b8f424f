package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// minTokenSeconds is the minimum lifetime of a projected token in Kubernetes.
const minTokenSeconds = 10 * 60

var (
	projectedVolumeMask       = fieldMask{allowed: []string{"defaultMode", "sources"}}
	volumeProjectionMask      = fieldMask{allowed: []string{"configMap", "downwardAPI", "secret", "serviceAccountToken"}}
	objectProjectionMask      = fieldMask{allowed: []string{"items", "name", "optional"}}
	downwardAPIMask           = fieldMask{allowed: []string{"items"}}
	downwardAPIFileMask       = fieldMask{allowed: []string{"fieldRef", "mode", "path", "resourceFieldRef"}}
	tokenProjectionMask       = fieldMask{allowed: []string{"audience", "expirationSeconds", "path"}}
	objectFieldSelectorMask   = fieldMask{allowed: []string{"apiVersion", "fieldPath"}}
	resourceFieldSelectorMask = fieldMask{allowed: []string{"containerName", "divisor", "resource"}}
)

// validateProjectedVolume validates a volume with several sources (serving 10.24, 10.26).
func validateProjectedVolume(v *corev1.ProjectedVolumeSource, features Features, path *field.Path) field.ErrorList {
	errs := projectedVolumeMask.validate(v, features, path)
	errs = append(errs, validateMode(v.DefaultMode, path.Child("defaultMode"))...)
	if len(v.Sources) == 0 {
		errs = append(errs, field.Required(path.Child("sources"), "must hold at least one source"))
	}
	for i := range v.Sources {
		source, at := &v.Sources[i], path.Child("sources").Index(i)
		errs = append(errs, volumeProjectionMask.validate(source, features, at)...)
		errs = append(errs, validateOneOf(volumeProjectionMask, source, features, at)...)
		errs = append(errs, validateProjection(source, features, at)...)
	}
	return errs
}

// validateProjection validates each allowed source (serving 10.27, 10.28).
func validateProjection(source *corev1.VolumeProjection, features Features, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p := source.ConfigMap; p != nil {
		at := path.Child("configMap")
		errs = append(errs, objectProjectionMask.validate(p, features, at)...)
		errs = append(errs, validateReferenceName(p.Name, at.Child("name"))...)
		errs = append(errs, validateItems(p.Items, features, at.Child("items"))...)
	}
	if p := source.Secret; p != nil {
		at := path.Child("secret")
		errs = append(errs, objectProjectionMask.validate(p, features, at)...)
		errs = append(errs, validateReferenceName(p.Name, at.Child("name"))...)
		errs = append(errs, validateItems(p.Items, features, at.Child("items"))...)
	}
	if p := source.ServiceAccountToken; p != nil {
		at := path.Child("serviceAccountToken")
		errs = append(errs, tokenProjectionMask.validate(p, features, at)...)
		errs = append(errs, validateFilePath(p.Path, at.Child("path"))...)
		if p.ExpirationSeconds != nil {
			errs = append(errs, validateRange(*p.ExpirationSeconds, minTokenSeconds, 1<<32, at.Child("expirationSeconds"))...)
		}
	}
	if p := source.DownwardAPI; p != nil {
		at := path.Child("downwardAPI")
		errs = append(errs, downwardAPIMask.validate(p, features, at)...)
		for i := range p.Items {
			errs = append(errs, validateDownwardAPIFile(&p.Items[i], features, at.Child("items").Index(i))...)
		}
	}
	return errs
}

func validateDownwardAPIFile(file *corev1.DownwardAPIVolumeFile, features Features, path *field.Path) field.ErrorList {
	errs := downwardAPIFileMask.validate(file, features, path)
	errs = append(errs, validateFilePath(file.Path, path.Child("path"))...)
	errs = append(errs, validateMode(file.Mode, path.Child("mode"))...)
	errs = append(errs, validateOneOf(downwardAPIFileMask, file, features, path, "path", "mode")...)
	if ref := file.FieldRef; ref != nil {
		errs = append(errs, validateFieldRef(ref, features, path.Child("fieldRef"))...)
	}
	if ref := file.ResourceFieldRef; ref != nil {
		errs = append(errs, validateResourceFieldRef(ref, features, path.Child("resourceFieldRef"))...)
	}
	return errs
}

// validateFieldRef does not validate the field path; the host does.
func validateFieldRef(ref *corev1.ObjectFieldSelector, features Features, path *field.Path) field.ErrorList {
	errs := objectFieldSelectorMask.validate(ref, features, path)
	if ref.FieldPath == "" {
		errs = append(errs, field.Required(path.Child("fieldPath"), ""))
	}
	return errs
}

// validateResourceFieldRef does not validate the resource; the host does.
func validateResourceFieldRef(ref *corev1.ResourceFieldSelector, features Features, path *field.Path) field.ErrorList {
	errs := resourceFieldSelectorMask.validate(ref, features, path)
	if ref.Resource == "" {
		errs = append(errs, field.Required(path.Child("resource"), ""))
	}
	return errs
}
