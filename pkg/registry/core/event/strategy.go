package event

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
)

// strategy implements the create and update strategy of Events.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

var (
	_ rest.RESTCreateUpdateStrategy        = strategy{}
	_ rest.RESTDeleteStrategy              = strategy{}
	_ rest.GarbageCollectionDeleteStrategy = strategy{}
)

func newStrategy(typer runtime.ObjectTyper) strategy {
	return strategy{typer, names.SimpleNameGenerator}
}

// NamespaceScoped returns true: Events are namespaced.
func (strategy) NamespaceScoped() bool { return true }

// AllowCreateOnUpdate returns true: PUT and apply may create an Event.
func (strategy) AllowCreateOnUpdate(context.Context) bool { return true }

// AllowUnconditionalUpdate returns true: a PUT without resourceVersion replaces the stored Event.
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// Canonicalize does nothing.
func (strategy) Canonicalize(runtime.Object) {}

// PrepareForCreate does nothing.
func (strategy) PrepareForCreate(context.Context, runtime.Object) {}

// PrepareForUpdate does nothing.
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

// DefaultGarbageCollectionPolicy returns Unsupported: Events have no dependents.
func (strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.Unsupported
}

// Validate returns all errors of a new Event.
func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validate(obj.(*corev1.Event))
}

// ValidateUpdate returns all errors of an Event that replaces another.
func (strategy) ValidateUpdate(_ context.Context, obj, _ runtime.Object) field.ErrorList {
	return validate(obj.(*corev1.Event))
}

// WarningsOnCreate returns no warnings.
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate returns no warnings.
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// validate checks the same rule as Kubernetes for core/v1 Events: an Event is in the namespace of its object, or in the
// default namespace if the object is cluster-scoped.
func validate(event *corev1.Event) field.ErrorList {
	want := event.InvolvedObject.Namespace
	if want == "" {
		want = metav1.NamespaceDefault
	}
	if event.Namespace != want {
		return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), event.InvolvedObject.Namespace,
			"must be the namespace of the Event; Events of cluster-scoped objects must be in 'default'")}
	}
	return nil
}
