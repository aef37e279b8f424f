package v1

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	volumeSourceMask = fieldMask{
		allowed: []string{"configMap", "projected", "secret"},
		gated: map[string]string{
			"csi":                   featureVolumeCSI,
			"emptyDir":              featureVolumeEmptyDir,
			"ephemeral":             featureVolumeEphemeral,
			"hostPath":              featureVolumeHostPath,
			"image":                 featureVolumeImage,
			"persistentVolumeClaim": featurePersistentVolumeClaim,
		},
	}
	configMapVolumeMask = fieldMask{allowed: []string{"defaultMode", "items", "name", "optional"}}
	secretVolumeMask    = fieldMask{allowed: []string{"defaultMode", "items", "optional", "secretName"}}
	keyToPathMask       = fieldMask{allowed: []string{"key", "mode", "path"}}
	emptyDirMask        = fieldMask{allowed: []string{"medium", "sizeLimit"}}
)

func volumesByName(volumes []corev1.Volume) map[string]*corev1.Volume {
	byName := make(map[string]*corev1.Volume, len(volumes))
	for i := range volumes {
		byName[volumes[i].Name] = &volumes[i]
	}
	return byName
}

// validateVolumes validates the volumes of a Pod: unique names, exactly one source each (serving 10.21).
func validateVolumes(volumes []corev1.Volume, features Features, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range volumes {
		volume, at := &volumes[i], path.Index(i)
		if volume.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		if volume.Name != "" {
			for _, msg := range validation.IsDNS1123Label(volume.Name) {
				errs = append(errs, field.Invalid(at.Child("name"), volume.Name, msg))
			}
			if names.Has(volume.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), volume.Name))
			}
			names.Insert(volume.Name)
		}
		errs = append(errs, volumeSourceMask.validate(&volume.VolumeSource, features, at)...)
		errs = append(errs, validateOneOf(volumeSourceMask, &volume.VolumeSource, features, at)...)
		errs = append(errs, validateVolumeSource(&volume.VolumeSource, features, at)...)
	}
	return errs
}

// validateVolumeSource validates each allowed source.
func validateVolumeSource(s *corev1.VolumeSource, features Features, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if v := s.ConfigMap; v != nil {
		errs = append(errs, validateConfigMapVolume(v, features, path.Child("configMap"))...)
	}
	if v := s.Secret; v != nil {
		errs = append(errs, validateSecretVolume(v, features, path.Child("secret"))...)
	}
	if v := s.Projected; v != nil {
		errs = append(errs, validateProjectedVolume(v, features, path.Child("projected"))...)
	}
	if v := s.EmptyDir; v != nil && features.VolumeEmptyDir {
		errs = append(errs, validateEmptyDir(v, features, path.Child("emptyDir"))...)
	}
	if v := s.PersistentVolumeClaim; v != nil && features.PersistentVolumeClaim {
		errs = append(errs, validateClaim(v, features, path.Child("persistentVolumeClaim"))...)
	}
	if v := s.HostPath; v != nil && features.VolumeHostPath && v.Path == "" {
		errs = append(errs, field.Required(path.Child("hostPath", "path"), ""))
	}
	if v := s.CSI; v != nil && features.VolumeCSI && v.Driver == "" {
		errs = append(errs, field.Required(path.Child("csi", "driver"), ""))
	}
	if v := s.Ephemeral; v != nil && features.VolumeEphemeral && v.VolumeClaimTemplate == nil {
		errs = append(errs, field.Required(path.Child("ephemeral", "volumeClaimTemplate"), ""))
	}
	if v := s.Image; v != nil && features.VolumeImage {
		errs = append(errs, validateImage(v.Reference, path.Child("image", "reference"))...)
		errs = append(errs, validatePullPolicy(v.PullPolicy, path.Child("image", "pullPolicy"))...)
	}
	return errs
}

// validateConfigMapVolume validates serving 10.22.
func validateConfigMapVolume(v *corev1.ConfigMapVolumeSource, features Features, path *field.Path) field.ErrorList {
	errs := configMapVolumeMask.validate(v, features, path)
	errs = append(errs, validateReferenceName(v.Name, path.Child("name"))...)
	errs = append(errs, validateMode(v.DefaultMode, path.Child("defaultMode"))...)
	return append(errs, validateItems(v.Items, features, path.Child("items"))...)
}

// validateSecretVolume validates serving 10.23.
func validateSecretVolume(v *corev1.SecretVolumeSource, features Features, path *field.Path) field.ErrorList {
	errs := secretVolumeMask.validate(v, features, path)
	errs = append(errs, validateReferenceName(v.SecretName, path.Child("secretName"))...)
	errs = append(errs, validateMode(v.DefaultMode, path.Child("defaultMode"))...)
	return append(errs, validateItems(v.Items, features, path.Child("items"))...)
}

// validateItems validates the mapping of keys to files (serving 10.25).
func validateItems(items []corev1.KeyToPath, features Features, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range items {
		item, at := &items[i], path.Index(i)
		errs = append(errs, keyToPathMask.validate(item, features, at)...)
		errs = append(errs, validateDataKey(item.Key, at.Child("key"))...)
		errs = append(errs, validateFilePath(item.Path, at.Child("path"))...)
		errs = append(errs, validateMode(item.Mode, at.Child("mode"))...)
	}
	return errs
}

// validateFilePath validates the path of a file in a volume. Names that start with two dots are reserved for the kubelet's links.
func validateFilePath(p string, path *field.Path) field.ErrorList {
	if p == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	errs := validateRelativePath(p, path)
	if len(errs) == 0 && strings.HasPrefix(p, "..") {
		errs = append(errs, field.Invalid(path, p, "must not start with '..'"))
	}
	return errs
}

// validateMode validates the permission bits of files.
func validateMode(mode *int32, path *field.Path) field.ErrorList {
	if mode == nil || *mode >= 0 && *mode <= 0o777 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, *mode, "must be between 0 and 0777 (octal), inclusive")}
}

func validateEmptyDir(v *corev1.EmptyDirVolumeSource, features Features, path *field.Path) field.ErrorList {
	errs := emptyDirMask.validate(v, features, path)
	supported := []corev1.StorageMedium{corev1.StorageMediumDefault, corev1.StorageMediumMemory, corev1.StorageMediumHugePages}
	if !slices.Contains(supported, v.Medium) && !strings.HasPrefix(string(v.Medium), string(corev1.StorageMediumHugePagesPrefix)) {
		errs = append(errs, field.NotSupported(path.Child("medium"), v.Medium, supported))
	}
	if v.SizeLimit != nil && v.SizeLimit.Sign() < 0 {
		errs = append(errs, field.Invalid(path.Child("sizeLimit"), v.SizeLimit.String(), "must be greater than or equal to 0"))
	}
	return errs
}

// validateClaim checks that a persistent volume is read-only, unless the operator allows backends to share state.
func validateClaim(v *corev1.PersistentVolumeClaimVolumeSource, features Features, path *field.Path) field.ErrorList {
	errs := validateReferenceName(v.ClaimName, path.Child("claimName"))
	if !v.ReadOnly && !features.PersistentVolumeWrite {
		errs = append(errs, field.Invalid(path.Child("readOnly"), false,
			"must be true unless '"+featurePersistentVolumeWrite+"' in "+FeaturesConfigMapName+" is enabled"))
	}
	return errs
}
