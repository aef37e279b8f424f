package v1

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var volumeMountMask = fieldMask{
	allowed: []string{"mountPath", "name", "readOnly", "subPath"},
	gated:   map[string]string{"mountPropagation": featureMountPropagation},
}

// reservedMountPaths returns the directories that the runtime contract reserves (serving 10.4-16).
func reservedMountPaths() []string {
	return []string{"/", "/dev", "/dev/log"}
}

// validateMounts validates the volume mounts of a container (serving 10.20).
func validateMounts(mounts []corev1.VolumeMount, volumes map[string]*corev1.Volume, features Features, fldPath *field.Path) field.ErrorList {
	var errs field.ErrorList
	paths := sets.New[string]()
	for i := range mounts {
		mount, at := &mounts[i], fldPath.Index(i)
		errs = append(errs, volumeMountMask.validate(mount, features, at)...)
		errs = append(errs, validateMountPath(mount.MountPath, paths, at.Child("mountPath"))...)
		if mount.SubPath != "" {
			errs = append(errs, validateRelativePath(mount.SubPath, at.Child("subPath"))...)
		}
		volume, known := volumes[mount.Name]
		switch {
		case mount.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case !known:
			errs = append(errs, field.NotFound(at.Child("name"), mount.Name))
		default:
			errs = append(errs, validateMountAccess(mount, volume, at.Child("readOnly"))...)
		}
	}
	return errs
}

// validateMountPath validates one mount path and adds it to paths, the previous ones.
func validateMountPath(mountPath string, paths sets.Set[string], fldPath *field.Path) field.ErrorList {
	if mountPath == "" {
		return field.ErrorList{field.Required(fldPath, "")}
	}
	if !path.IsAbs(mountPath) {
		return field.ErrorList{field.Invalid(fldPath, mountPath, "must be an absolute path")}
	}
	// "/dev/" and "/a/../dev" are equivalent to /dev.
	clean := path.Clean(mountPath)
	if slices.Contains(reservedMountPaths(), clean) {
		return field.ErrorList{field.Invalid(fldPath, mountPath,
			"must not be one of the reserved paths: "+strings.Join(reservedMountPaths(), ", "))}
	}
	if paths.Has(clean) {
		return field.ErrorList{field.Duplicate(fldPath, mountPath)}
	}
	paths.Insert(clean)
	return nil
}

// validateMountAccess checks that a mount is read-only unless its volume is of a writable type (serving 10.20-4).
func validateMountAccess(mount *corev1.VolumeMount, volume *corev1.Volume, fldPath *field.Path) field.ErrorList {
	claim := volume.PersistentVolumeClaim
	switch {
	case mount.ReadOnly:
		return nil
	case !isWritableVolume(volume.VolumeSource):
		return field.ErrorList{field.Invalid(fldPath, false,
			"must be true, only emptyDir, persistentVolumeClaim and ephemeral volumes may be written to")}
	case claim != nil && claim.ReadOnly:
		return field.ErrorList{field.Invalid(fldPath, false, "must be true, because the volume's claim is readOnly")}
	default:
		return nil
	}
}

// validateEveryVolumeMounted checks that a container uses each volume. An unused volume is a mistake that would otherwise be noticed
// only at run time.
func validateEveryVolumeMounted(s *corev1.PodSpec, fldPath *field.Path) field.ErrorList {
	mounted := sets.New[string]()
	for _, containers := range [][]corev1.Container{s.Containers, s.InitContainers} {
		for i := range containers {
			for j := range containers[i].VolumeMounts {
				mounted.Insert(containers[i].VolumeMounts[j].Name)
			}
		}
	}
	var errs field.ErrorList
	for i := range s.Volumes {
		if name := s.Volumes[i].Name; name != "" && !mounted.Has(name) {
			errs = append(errs, field.Invalid(fldPath.Index(i).Child("name"), name, "must be mounted by a container"))
		}
	}
	return errs
}

// validateRelativePath validates a path that must stay below a directory.
func validateRelativePath(p string, fldPath *field.Path) field.ErrorList {
	switch {
	case path.IsAbs(p):
		return field.ErrorList{field.Invalid(fldPath, p, "must be a relative path")}
	case slices.Contains(strings.Split(p, "/"), ".."):
		return field.ErrorList{field.Invalid(fldPath, p, "must not contain '..'")}
	default:
		return nil
	}
}
