package harness

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Editor is the part of a typed client that changes objects.
type Editor[O any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (O, error)
	Update(ctx context.Context, object O, options metav1.UpdateOptions) (O, error)
}

// Edit changes an object and returns what the server stored. It repeats the change after a conflict: a controller may
// write the object's status at any time.
func Edit[O any](t testing.TB, client Editor[O], name string, change func(O)) O {
	t.Helper()
	for {
		object, err := client.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(object)
		stored, err := client.Update(t.Context(), object, metav1.UpdateOptions{})
		if err == nil {
			return stored
		}
		if !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
}
