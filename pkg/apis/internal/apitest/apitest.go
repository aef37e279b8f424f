// Package apitest contains helpers for the tests of all API groups.
package apitest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Fault is an expected error. Detail is a fragment of the message.
type Fault struct {
	Type   field.ErrorType
	Field  string
	Detail string
}

// ExpectFaults compares errors with the expected ones, in order.
func ExpectFaults[F ~struct {
	Type   field.ErrorType
	Field  string
	Detail string
}](t *testing.T, got field.ErrorList, want ...F) {
	t.Helper()
	var seen []F
	for i, err := range got {
		f := Fault{Type: err.Type, Field: err.Field, Detail: err.ErrorBody()}
		if i < len(want) && strings.Contains(f.Detail, Fault(want[i]).Detail) {
			f.Detail = Fault(want[i]).Detail
		}
		seen = append(seen, F(f))
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

// FuzzObject decodes mutated JSON like a request and checks invariants of every object: nothing panics, defaulting is
// idempotent, and a valid object is unchanged after it is stored and read.
func FuzzObject[T any, P interface {
	*T
	metav1.Object
}](t *testing.T, data []byte, spec func(P) any, setDefaults func(P), validate func(P) field.ErrorList) {
	decode := func(data []byte) (P, error) {
		object := P(new(T))
		return object, utiljson.Unmarshal(data, object)
	}
	same := func(what string, a, b P) {
		for part, values := range map[string][2]any{
			"spec":        {spec(a), spec(b)},
			"labels":      {a.GetLabels(), b.GetLabels()},
			"annotations": {a.GetAnnotations(), b.GetAnnotations()},
		} {
			if !equality.Semantic.DeepEqual(values[0], values[1]) {
				t.Errorf("%s changed by %s (-before +after):\n%s", part, what, cmp.Diff(values[0], values[1]))
			}
		}
	}

	once, err := decode(data)
	if err != nil {
		return // not an object of this kind
	}
	setDefaults(once)
	twice, err := decode(data)
	if err != nil {
		t.Fatal(err)
	}
	setDefaults(twice)
	setDefaults(twice)
	same("a second defaulting", once, twice)

	if len(validate(once)) > 0 {
		return
	}
	encoded, err := json.Marshal(once)
	if err != nil {
		t.Fatalf("valid, but cannot be encoded: %v", err)
	}
	stored, err := decode(encoded)
	if err != nil {
		t.Fatalf("valid, but cannot be decoded from %s: %v", encoded, err)
	}
	same("being stored", once, stored)
	setDefaults(stored)
	same("being defaulted when read", once, stored)
	if faults := validate(stored); len(faults) > 0 {
		t.Errorf("valid before it was stored, but not after: %v", faults)
	}
}
