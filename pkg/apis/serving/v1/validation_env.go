package v1

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	envVarMask       = fieldMask{allowed: []string{"name", "value", "valueFrom"}}
	envVarSourceMask = fieldMask{
		allowed: []string{"configMapKeyRef", "secretKeyRef"},
		gated:   map[string]string{"fieldRef": featureFieldRef, "resourceFieldRef": featureFieldRef},
	}
	keySelectorMask   = fieldMask{allowed: []string{"key", "name", "optional"}}
	envFromSourceMask = fieldMask{allowed: []string{"configMapRef", "prefix", "secretRef"}}
	envSourceMask     = fieldMask{allowed: []string{"name", "optional"}}
)

// reservedEnv returns the variables that the system sets in a container. PORT is the port on which the serving container must
// listen; other containers may set it.
func reservedEnv(role containerRole) []string {
	names := []string{"K_CONFIGURATION", "K_REVISION", "K_SERVICE"}
	if role == roleServing {
		names = append(names, "PORT")
	}
	return names
}

// validateEnv validates environment variables (serving 10.5). Names follow the current core/v1: printable ASCII without '='.
func validateEnv(env []corev1.EnvVar, role containerRole, features Features, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	reserved := reservedEnv(role)
	for i := range env {
		variable, at := &env[i], path.Index(i)
		errs = append(errs, envVarMask.validate(variable, features, at)...)
		switch {
		case variable.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case slices.Contains(reserved, variable.Name):
			errs = append(errs, field.Invalid(at.Child("name"), variable.Name,
				"must not be one of the variables that the system sets: "+strings.Join(reserved, ", ")))
		default:
			for _, msg := range validation.IsRelaxedEnvVarName(variable.Name) {
				errs = append(errs, field.Invalid(at.Child("name"), variable.Name, msg))
			}
		}
		if variable.ValueFrom == nil {
			continue
		}
		if variable.Value != "" {
			errs = append(errs, field.Forbidden(at.Child("valueFrom"), "may not be set when value is not empty"))
		}
		errs = append(errs, validateEnvSource(variable.ValueFrom, features, at.Child("valueFrom"))...)
	}
	return errs
}

// validateEnvSource validates the source of a variable's value (serving 10.6).
func validateEnvSource(source *corev1.EnvVarSource, features Features, path *field.Path) field.ErrorList {
	errs := envVarSourceMask.validate(source, features, path)
	errs = append(errs, validateOneOf(envVarSourceMask, source, features, path)...)
	if ref := source.ConfigMapKeyRef; ref != nil {
		at := path.Child("configMapKeyRef")
		errs = append(errs, keySelectorMask.validate(ref, features, at)...)
		errs = append(errs, validateReferenceName(ref.Name, at.Child("name"))...)
		errs = append(errs, validateDataKey(ref.Key, at.Child("key"))...)
	}
	if ref := source.SecretKeyRef; ref != nil {
		at := path.Child("secretKeyRef")
		errs = append(errs, keySelectorMask.validate(ref, features, at)...)
		errs = append(errs, validateReferenceName(ref.Name, at.Child("name"))...)
		errs = append(errs, validateDataKey(ref.Key, at.Child("key"))...)
	}
	if ref := source.FieldRef; ref != nil && features.FieldRef {
		errs = append(errs, validateFieldRef(ref, features, path.Child("fieldRef"))...)
	}
	if ref := source.ResourceFieldRef; ref != nil && features.FieldRef {
		errs = append(errs, validateResourceFieldRef(ref, features, path.Child("resourceFieldRef"))...)
	}
	return errs
}

// validateDataKey validates a key in the data of a ConfigMap or Secret (serving 10.7-1, 10.8-1).
func validateDataKey(key string, path *field.Path) field.ErrorList {
	if key == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsConfigMapKey(key) {
		errs = append(errs, field.Invalid(path, key, msg))
	}
	return errs
}

// validateEnvFrom validates references to objects whose data become variables (serving 10.10, 10.16, 10.17).
func validateEnvFrom(sources []corev1.EnvFromSource, features Features, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range sources {
		source, at := &sources[i], path.Index(i)
		errs = append(errs, envFromSourceMask.validate(source, features, at)...)
		if source.Prefix != "" {
			for _, msg := range validation.IsRelaxedEnvVarName(source.Prefix) {
				errs = append(errs, field.Invalid(at.Child("prefix"), source.Prefix, msg))
			}
		}
		errs = append(errs, validateOneOf(envFromSourceMask, source, features, at, "prefix")...)
		if ref := source.ConfigMapRef; ref != nil {
			errs = append(errs, envSourceMask.validate(ref, features, at.Child("configMapRef"))...)
			errs = append(errs, validateReferenceName(ref.Name, at.Child("configMapRef", "name"))...)
		}
		if ref := source.SecretRef; ref != nil {
			errs = append(errs, envSourceMask.validate(ref, features, at.Child("secretRef"))...)
			errs = append(errs, validateReferenceName(ref.Name, at.Child("secretRef", "name"))...)
		}
	}
	return errs
}
