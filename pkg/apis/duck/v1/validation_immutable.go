package v1

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateImmutable returns the fault of a field that changed in meaning though it may not (eventing Broker,
// Trigger, Channel and Subscription Lifecycle). The error shows both values.
func ValidateImmutable(newValue, oldValue any, path *field.Path) field.ErrorList {
	if equality.Semantic.DeepEqual(newValue, oldValue) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, newValue, fmt.Sprintf(
		"may not change from '%s' to '%s'; delete and recreate the object instead", compact(oldValue), compact(newValue)))}
}

// compact shows a value in one line: a string as it is, everything else as JSON.
func compact(value any) string {
	if s, ok := value.(string); ok {
		return s
	}
	text, err := json.Marshal(value)
	if err != nil {
		// Raw parts of an object may hold anything; the rest of validation reports them.
		return fmt.Sprint(value)
	}
	return string(text)
}
