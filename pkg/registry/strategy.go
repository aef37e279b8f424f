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

// strategy implements the create and update strategy of a resource.
type strategy[O Object, Spec, Status any] struct {
	*Resource[O, Spec, Status]
	runtime.ObjectTyper
	names.NameGenerator
}

// Strategy implements the rules of a resource for writes.
type Strategy interface {
	rest.RESTCreateUpdateStrategy
	rest.RESTDeleteStrategy
	rest.ResetFieldsStrategy
}

// Strategies returns the strategies of a resource and of its /status subresource.
func Strategies[O Object, Spec, Status any](r *Resource[O, Spec, Status], typer runtime.ObjectTyper) (main Strategy, status rest.UpdateResetFieldsStrategy) {
	s := strategy[O, Spec, Status]{Resource: r, ObjectTyper: typer, NameGenerator: names.SimpleNameGenerator}
	return s, statusStrategy[O, Spec, Status]{s}
}

var (
	_ Strategy                             = strategy[Object, any, any]{}
	_ rest.GarbageCollectionDeleteStrategy = strategy[Object, any, any]{}
)

// NamespaceScoped reports whether the objects are in namespaces.
func (s strategy[O, Spec, Status]) NamespaceScoped() bool { return !s.ClusterScoped }

// AllowCreateOnUpdate returns true: PUT and apply may create an object.
func (strategy[O, Spec, Status]) AllowCreateOnUpdate(context.Context) bool { return true }

// AllowUnconditionalUpdate returns true: a PUT without resourceVersion replaces the stored object.
func (strategy[O, Spec, Status]) AllowUnconditionalUpdate(context.Context) bool { return true }

// Canonicalize does nothing: PrepareForCreate and PrepareForUpdate return the stored form.
func (strategy[O, Spec, Status]) Canonicalize(runtime.Object) {}

// DefaultGarbageCollectionPolicy deletes dependents in the background unless the request says otherwise.
func (strategy[O, Spec, Status]) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.DeleteDependents
}

// GetResetFields returns the status: field managers of the resource do not own it.
func (s strategy[O, Spec, Status]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if s.Status == nil {
		return nil
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.GroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// PrepareForCreate drops the status, sets defaults, and records the creator.
func (s strategy[O, Spec, Status]) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	o := obj.(O)
	if s.Status != nil {
		var none Status
		*s.Status(o) = none
	}
	o.SetGeneration(1)
	if s.DefaultOnCreate != nil {
		s.DefaultOnCreate(o)
	}
	if s.Default != nil {
		s.Default(o)
	}
	s.recordCreator(ctx, o)
}

// PrepareForUpdate keeps the stored status, sets defaults, increments the generation if the spec changes semantically, and
// records the last modifier.
func (s strategy[O, Spec, Status]) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	o, oldO := obj.(O), old.(O)
	if s.Status != nil {
		*s.Status(o) = *s.Status(oldO)
	}
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
		// A semantically equal object is not written.
		*s.Spec(o) = *s.Spec(oldO)
	}
	s.recordModifier(ctx, o, oldO, changed)
}

// Validate returns all errors of a new object.
func (s strategy[O, Spec, Status]) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	o := obj.(O)
	return append(s.Resource.Validate(ctx, o), ValidateLabelsSize(o.GetLabels())...)
}

// ValidateUpdate returns all errors of an object that replaces old.
func (s strategy[O, Spec, Status]) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	o := obj.(O)
	return append(s.Resource.ValidateUpdate(ctx, o, old.(O)), ValidateLabelsSize(o.GetLabels())...)
}

// WarningsOnCreate returns a warning for each field of a new object that has no effect, and those from observations.
func (s strategy[O, Spec, Status]) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	var none O
	return s.warnings(ctx, obj.(O), none)
}

// WarningsOnUpdate is like WarningsOnCreate for a changed object.
func (s strategy[O, Spec, Status]) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	return s.warnings(ctx, obj.(O), old.(O))
}

func (s strategy[O, Spec, Status]) warnings(ctx context.Context, o, old O) (all []string) {
	// Controllers copy fields about which users were warned.
	if s.Warnings == nil && s.Observations == nil || s.Controllers.Made(ctx) {
		return nil
	}
	if s.ForeignStatus != nil {
		// The fields that foreign controllers read are unknown.
		if foreign, err := s.ForeignStatus(ctx, o); err != nil || foreign {
			return nil
		}
	}
	if s.Warnings != nil {
		all = s.Warnings(o)
	}
	if s.Observations != nil {
		all = append(all, s.Observations(ctx, o, old)...)
	}
	return all
}
