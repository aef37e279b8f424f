package v1

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// fieldMask names the fields that a template may set in one core/v1 type, by their JSON names. It is a list
// of what is allowed, so that a field which a later release adds to the type is refused until someone
// decides about it (serving 10).
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type fieldMask struct {
	// allowed fields may always be set.
	allowed []string
	// gated fields may be set when the feature of config-features with the given key is on.
	gated map[string]string
}

// validate returns one fault for each field of the struct v, or of what it points to, that is set and may
// not be.
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

// permits tells whether a template may set the named field.
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

// setFields returns the JSON names of the fields of the struct v, or of what it points to, that are not
// empty, with the fields of inlined structs among them, in the order of declaration.
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

// isSet tells whether a field says anything. An empty list or map is as good as none; a pointer counts,
// because what it points to may be meant to be empty (emptyDir: {}).
func isSet(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.Slice, reflect.Map:
		return value.Len() > 0
	default:
		return !value.IsZero()
	}
}

// validateOneOf checks that exactly one of the choices is set in the struct v, or in what it points to,
// whose other fields are named in besides. A choice that may not be set at all is left to validate, and
// counts as made.
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
