package v1

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestDeadLetterStore covers the annotation of an object, of its Broker, and values that are not allowed.
func TestDeadLetterStore(t *testing.T) {
	set := func(value string) map[string]string {
		return map[string]string{DeadLetterStoreAnnotationKey: value}
	}
	for _, test := range []struct {
		own, parent map[string]string
		want        bool
	}{
		{nil, nil, true},
		{nil, set("disabled"), false},
		{set("enabled"), set("disabled"), true},
		{set("disabled"), nil, false},
		{set("disabled"), set("enabled"), false},
	} {
		if got := StoresDeadLetters(test.own, test.parent); got != test.want {
			t.Errorf("with %v and %v: %t, want %t", test.own, test.parent, got, test.want)
		}
	}
	for value, faults := range map[string]int{"enabled": 0, "disabled": 0, "": 1, "Disabled": 1, "false": 1} {
		if errs := ValidateDeadLetterStore(set(value), field.NewPath("metadata", "annotations")); len(errs) != faults {
			t.Errorf("%q: %v", value, errs)
		}
	}
	if errs := ValidateDeadLetterStore(nil, nil); len(errs) > 0 {
		t.Error(errs)
	}
}
