package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// strategy holds writes of a resource itself to its rules.
type strategy[O Object, Spec, Status any] struct {
	*Resource[O, Spec, Status]
	runtime.ObjectTyper
	names.NameGenerator
}

// Strategy holds writes of a resource to its rules.
type Strategy interface {
	rest.RESTCreateUpdateStrategy
	rest.RESTDeleteStrategy
	rest.ResetFieldsStrategy
}

// Strategies returns the rules for writes of a resource itself and of its /status subresource.
func Strategies[O Object, Spec, Status any](r *Resource[O, Spec, Status], typer runtime.ObjectTyper) (main Strategy, status rest.UpdateResetFieldsStrategy) {
	s := strategy[O, Spec, Status]{Resource: r, ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator}
	return s, statusStrategy[O, Spec, Status]{s}
}

var (
	_ Strategy                             = strategy[Object, any, any]{}
	_ rest.GarbageCollectionDeleteStrategy = strategy[Object, any, any]{}
)

// NamespaceScoped says that all our kinds live in namespaces.
func (strategy[O, Spec, Status]) NamespaceScoped() bool { return true }

// AllowCreateOnUpdate lets PUT and apply create what is not there yet.
func (strategy[O, Spec, Status]) AllowCreateOnUpdate(context.Context) bool { return true }

// AllowUnconditionalUpdate lets a PUT without resourceVersion replace whatever is stored.
func (strategy[O, Spec, Status]) AllowUnconditionalUpdate(context.Context) bool { return true }

// Canonicalize has nothing to do: preparation leaves objects in their stored form.
func (strategy[O, Spec, Status]) Canonicalize(runtime.Object) {}

// DefaultGarbageCollectionPolicy deletes dependents in the background unless the request says otherwise.
func (strategy[O, Spec, Status]) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.DeleteDependents
}

// GetResetFields tells server-side apply that the status is not for appliers of the resource to own.
func (s strategy[O, Spec, Status]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.GroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// PrepareForCreate drops the status, fills defaults, and records who creates the object.
func (s strategy[O, Spec, Status]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	o := obj.(O)
	var none Status
	*s.Status(o) = none
	o.SetGeneration(1)
	if s.DefaultOnCreate != nil {
		s.DefaultOnCreate(o)
	}
	if s.Default != nil {
		s.Default(o)
	}
	s.recordCreator(ctx, o)
}

// PrepareForUpdate keeps the stored status, fills defaults, moves the generation when the spec changes in
// meaning, and records who changed it.
func (s strategy[O, Spec, Status]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	o, oldO := obj.(O), old.(O)
	*s.Status(o) = *s.Status(oldO)
	if s.DefaultOnUpdate != nil {
		s.DefaultOnUpdate(ctx, o, oldO)
	}
	if s.Default != nil {
		s.Default(o)
	}
	changed := !equality.Semantic.DeepEqual(s.Spec(o), s.Spec(oldO))
	if changed {
		o.SetGeneration(oldO.GetGeneration() + 1)
	} else {
		// The same meaning in another form is no write at all.
		*s.Spec(o) = *s.Spec(oldO)
	}
	s.recordModifier(ctx, o, oldO, changed)
}

// Validate returns all faults of a new object.
func (s strategy[O, Spec, Status]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	o := obj.(O)
	return append(s.Resource.Validate(ctx, o), ValidateLabelsSize(o.GetLabels())...)
}

// ValidateUpdate returns all faults of an object that replaces old.
func (s strategy[O, Spec, Status]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	o := obj.(O)
	return append(s.Resource.ValidateUpdate(ctx, o, old.(O)), ValidateLabelsSize(o.GetLabels())...)
}

// WarningsOnCreate returns what of a new object has no effect.
func (s strategy[O, Spec, Status]) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	// Controllers copy what users were warned of.
	if s.Warnings == nil || s.Controllers.Made(ctx) {
		return nil
	}
	o := obj.(O)
	if s.ForeignStatus != nil {
		// Only the controllers of other makers know what they read.
		if foreign, err := s.ForeignStatus(ctx, o); err != nil || foreign {
			return nil
		}
	}
	return s.Warnings(o)
}

// WarningsOnUpdate returns what of a changed object has no effect.
func (s strategy[O, Spec, Status]) WarningsOnUpdate(ctx context.Context, obj, _ runtime.Object) []string {
	return s.WarningsOnCreate(ctx, obj)
}
