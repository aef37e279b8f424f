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

// strategy holds writes of Events to their rules.
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

// NamespaceScoped says that Events live in namespaces.
func (strategy) NamespaceScoped() bool { return true }

// AllowCreateOnUpdate lets PUT and apply create what is not there yet.
func (strategy) AllowCreateOnUpdate(context.Context) bool { return true }

// AllowUnconditionalUpdate lets a PUT without resourceVersion replace whatever is stored.
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// Canonicalize has nothing to do.
func (strategy) Canonicalize(runtime.Object) {}

// PrepareForCreate has nothing to do.
func (strategy) PrepareForCreate(context.Context, runtime.Object) {}

// PrepareForUpdate has nothing to do.
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

// DefaultGarbageCollectionPolicy says that nothing depends on Events.
func (strategy) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.Unsupported
}

// Validate returns all faults of an Event to be created.
func (strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validate(obj.(*corev1.Event))
}

// ValidateUpdate returns all faults of an Event that replaces another.
func (strategy) ValidateUpdate(_ context.Context, obj, _ runtime.Object) field.ErrorList {
	return validate(obj.(*corev1.Event))
}

// WarningsOnCreate has nothing to warn of.
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate has nothing to warn of.
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// validate checks what Kubernetes checks of core/v1 Events: that an Event is in the namespace of the object it
// is about, and in the default namespace where that object has none.
func validate(event *corev1.Event) field.ErrorList {
	want := event.InvolvedObject.Namespace
	if want == "" {
		want = metav1.NamespaceDefault
	}
	if event.Namespace != want {
		return field.ErrorList{field.Invalid(field.NewPath("involvedObject", "namespace"), event.InvolvedObject.Namespace,
			"must be the namespace of the Event; an object without a namespace has its Events in 'default'")}
	}
	return nil
}
