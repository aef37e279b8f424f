package v1

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// fieldMask lists the fields that a template may set in one core/v1 type, by their JSON names. It lists allowed fields, so that
// fields added by a later release are rejected until they are reviewed (serving 10).
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type fieldMask struct {
	// allowed fields may always be set.
	allowed []string
	// gated fields may be set if the feature of config-features with the given key is enabled.
	gated map[string]string
}

// validate returns one error for each field of the struct v, or of the struct v points to, that is set but not allowed.
func (m fieldMask) validate(v any, features Features, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range setFields(v) {
		key, gated := m.gated[name]
		switch {
		case slices.Contains(m.allowed, name):
		case !gated:
			errs = append(errs, field.Forbidden(path.Child(name), "may not be set, only "+m.list()+" may be set here"))
		case !features.enabled(key):
			errs = append(errs, field.Forbidden(path.Child(name), needsFeature(key)))
		}
	}
	return errs
}

// permits reports whether a template may set the named field.
func (m fieldMask) permits(name string, features Features) bool {
	key, gated := m.gated[name]
	return slices.Contains(m.allowed, name) || gated && features.enabled(key)
}

func (m fieldMask) list() string {
	return strings.Join(m.allowed, ", ")
}

func needsFeature(key string) string {
	return fmt.Sprintf("may not be set unless '%s' in %s is enabled", key, FeaturesConfigMapName)
}

// setFields returns the JSON names of the non-empty fields of the struct v, or of the struct v points to, including fields of
// inlined structs, in the order of declaration.
func setFields(v any) []string {
	value := reflect.Indirect(reflect.ValueOf(v))
	if value.Kind() != reflect.Struct {
		return nil
	}
	var names []string
	for i := range value.NumField() {
		structField := value.Type().Field(i)
		name, _, _ := strings.Cut(structField.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case structField.Anonymous && name == "":
			names = append(names, setFields(value.Field(i).Interface())...)
		case isSet(value.Field(i)):
			names = append(names, name)
		}
	}
	return names
}

// isSet reports whether a field has a value. Empty lists and maps count as unset. Pointers to empty values count as set, because
// they may be intentional (emptyDir: {}).
func isSet(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.Slice, reflect.Map:
		return value.Len() > 0
	default:
		return !value.IsZero()
	}
}

// validateOneOf checks that exactly one of the choices is set in the struct v, or in the struct v points to. besides names its
// other fields. A choice that is not allowed is reported by validate, and counts as set.
func validateOneOf(choices fieldMask, v any, features Features, path *field.Path, besides ...string) field.ErrorList {
	var errs field.ErrorList
	chosen, refused := "", false
	for _, name := range setFields(v) {
		switch {
		case slices.Contains(besides, name):
		case !choices.permits(name, features):
			refused = true
		case chosen == "":
			chosen = name
		default:
			errs = append(errs, field.Forbidden(path.Child(name), "may not be set together with "+chosen))
		}
	}
	if chosen == "" && !refused {
		list := without(choices.allowed, besides...)
		errs = append(errs, field.Required(path, "must set exactly one of "+strings.Join(list, ", ")))
	}
	return errs
}
