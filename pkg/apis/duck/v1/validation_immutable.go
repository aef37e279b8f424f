package v1

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateImmutable returns the error of an immutable field that changed semantically (eventing Broker,
// Trigger, Channel and Subscription Lifecycle). The error contains both values.
func ValidateImmutable(newValue, oldValue any, path *field.Path) field.ErrorList {
	if equality.Semantic.DeepEqual(newValue, oldValue) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, newValue, fmt.Sprintf(
		"may not change from '%s' to '%s'; delete and recreate the object instead", compact(oldValue), compact(newValue)))}
}

// compact formats a value on one line: a string unchanged, everything else as JSON.
func compact(value any) string {
	if s, ok := value.(string); ok {
		return s
	}
	text, err := json.Marshal(value)
	if err != nil {
		// Raw parts of an object may contain invalid JSON; the rest of validation reports it.
		return fmt.Sprint(value)
	}
	return string(text)
}
