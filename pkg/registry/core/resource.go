// Package core stores the kinds of Kubernetes' core/v1 group that a server without a host cluster serves itself.
package core

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// MaxDataSize is the limit in bytes of all values of a ConfigMap or a Secret combined.
const MaxDataSize = corev1.MaxSecretSize

// Resource describes one resource of core/v1: its names and its rules. Functions are optional unless marked required.
type Resource[O registry.Object] struct {
	// Plural is the name of the resource, Singular the name of one object. Required.
	Plural, Singular string
	ShortNames       []string
	// ClusterScoped is true if objects are not namespaced.
	ClusterScoped bool

	// New and NewList return an empty object and list. Required.
	New     func() O
	NewList func() runtime.Object

	// PrepareForCreate and PrepareForUpdate complete an object before validation.
	PrepareForCreate func(obj O)
	PrepareForUpdate func(obj, old O)
	// Canonicalize completes an object after its name is known.
	CanonicalizeObject func(obj O)
	// Name returns the errors of a name. Required.
	Name validation.ValidateNameFunc
	// ValidateObject returns the errors of an object except its metadata, ValidateChange the errors of its difference from
	// the stored object.
	ValidateObject func(obj O) field.ErrorList
	ValidateChange func(obj, old O) field.ErrorList
	// Warnings returns a warning for each field that is accepted but has no effect.
	Warnings func(obj O) []string

	// ResetFields are the fields that a write of the resource does not change.
	ResetFields *fieldpath.Set
	// SelectableFields are the supported fields of field selectors in addition to name and namespace.
	SelectableFields func(O) fields.Set
	// Columns are the table columns after the name.
	Columns []registry.Column[O]
}

// NewStore returns the store of a resource, for registry.NewREST.
func NewStore[O registry.Object](r Resource[O], typer runtime.ObjectTyper, getter generic.RESTOptionsGetter) (*genericregistry.Store, error) {
	rules := NewStrategy(r, typer)
	store := &genericregistry.Store{
		NewFunc:     func() runtime.Object { return r.New() },
		NewListFunc: r.NewList,
		PredicateFunc: func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: r.attributes}
		},
		DefaultQualifiedResource:  corev1.Resource(r.Plural),
		SingularQualifiedResource: corev1.Resource(r.Singular),
		CreateStrategy:            rules,
		UpdateStrategy:            rules,
		DeleteStrategy:            rules,
		ResetFieldsStrategy:       rules,
		TableConvertor: registry.NewTableConvertor(
			append(append([]registry.Column[O]{registry.NameColumn[O]()}, r.Columns...), registry.AgeColumn[O]())...),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: r.attributes}); err != nil {
		return nil, fmt.Errorf("set up storage of %s: %w", r.Plural, err)
	}
	return store, nil
}

// NewStorage returns the storage of a resource without subresources, by resource path.
func NewStorage[O registry.Object](r Resource[O], typer runtime.ObjectTyper, getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	store, err := NewStore(r, typer, getter)
	if err != nil {
		return nil, err
	}
	return map[string]rest.Storage{r.Plural: registry.NewREST(store, r.ShortNames, nil)}, nil
}

// attributes returns the labels and fields of an object for selectors.
func (r Resource[O]) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	o, ok := obj.(O)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a %s", obj, r.Singular)
	}
	return labels.Set(o.GetLabels()), r.selectable(o), nil
}

func (r Resource[O]) selectable(o O) fields.Set {
	set := fields.Set{"metadata.name": o.GetName()}
	if !r.ClusterScoped {
		set["metadata.namespace"] = o.GetNamespace()
	}
	if r.SelectableFields != nil {
		for key, value := range r.SelectableFields(o) {
			set[key] = value
		}
	}
	return set
}

// AddFieldLabels registers the field selectors of a kind with a scheme.
func (r Resource[O]) AddFieldLabels(scheme *runtime.Scheme, kind string) error {
	known := r.selectable(r.New())
	return scheme.AddFieldLabelConversionFunc(corev1.SchemeGroupVersion.WithKind(kind), func(label, value string) (string, string, error) {
		if !known.Has(label) {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return label, value, nil
	})
}

// Strategy implements the create and update strategy of a Resource.
type Strategy[O registry.Object] struct {
	Resource[O]
	runtime.ObjectTyper
	names.NameGenerator
}

// NewStrategy returns the strategy of a resource.
func NewStrategy[O registry.Object](r Resource[O], typer runtime.ObjectTyper) Strategy[O] {
	return Strategy[O]{r, typer, names.SimpleNameGenerator}
}

var (
	_ rest.RESTCreateUpdateStrategy        = Strategy[registry.Object]{}
	_ rest.GarbageCollectionDeleteStrategy = Strategy[registry.Object]{}
	_ rest.ResetFieldsStrategy             = Strategy[registry.Object]{}
)

// NamespaceScoped reports whether the objects are namespaced.
func (s Strategy[O]) NamespaceScoped() bool { return !s.ClusterScoped }

// AllowCreateOnUpdate returns false: as in Kubernetes, a PUT replaces an existing object only.
func (Strategy[O]) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate returns true: a PUT without resourceVersion replaces the stored object.
func (Strategy[O]) AllowUnconditionalUpdate(context.Context) bool { return true }

// DefaultGarbageCollectionPolicy deletes dependents in the background unless the request says otherwise.
func (Strategy[O]) DefaultGarbageCollectionPolicy(context.Context) rest.GarbageCollectionPolicy {
	return rest.DeleteDependents
}

// GetResetFields returns the fields that field managers of the resource do not own.
func (s Strategy[O]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	if s.ResetFields == nil {
		return nil
	}
	return map[fieldpath.APIVersion]*fieldpath.Set{"v1": s.ResetFields}
}

// PrepareForCreate completes a new object.
func (s Strategy[O]) PrepareForCreate(_ context.Context, obj runtime.Object) {
	if s.Resource.PrepareForCreate != nil {
		s.Resource.PrepareForCreate(obj.(O))
	}
}

// PrepareForUpdate completes an object that replaces old.
func (s Strategy[O]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	if s.Resource.PrepareForUpdate != nil {
		s.Resource.PrepareForUpdate(obj.(O), old.(O))
	}
}

// Canonicalize completes an object after its name is known.
func (s Strategy[O]) Canonicalize(obj runtime.Object) {
	if s.CanonicalizeObject != nil {
		s.CanonicalizeObject(obj.(O))
	}
}

// Validate returns all errors of a new object.
func (s Strategy[O]) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	o := obj.(O)
	errs := validation.ValidateObjectMetaAccessor(o, !s.ClusterScoped, s.Name, field.NewPath("metadata"))
	errs = append(errs, registry.ValidateLabelsSize(o.GetLabels())...)
	if s.ValidateObject != nil {
		errs = append(errs, s.ValidateObject(o)...)
	}
	return errs
}

// ValidateUpdate returns all errors of an object that replaces old.
func (s Strategy[O]) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	o, oldO := obj.(O), old.(O)
	errs := validation.ValidateObjectMetaAccessorUpdate(o, oldO, field.NewPath("metadata"))
	errs = append(errs, registry.ValidateLabelsSize(o.GetLabels())...)
	if s.ValidateObject != nil {
		errs = append(errs, s.ValidateObject(o)...)
	}
	if s.ValidateChange != nil {
		errs = append(errs, s.ValidateChange(o, oldO)...)
	}
	return errs
}

// WarningsOnCreate returns a warning for each field of a new object that has no effect.
func (s Strategy[O]) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	if s.Warnings == nil {
		return nil
	}
	return s.Warnings(obj.(O))
}

// WarningsOnUpdate returns a warning for each field of a changed object that has no effect.
func (s Strategy[O]) WarningsOnUpdate(ctx context.Context, obj, _ runtime.Object) []string {
	return s.WarningsOnCreate(ctx, obj)
}

// ValidateImmutable validates the change of an object with a field immutable. data are the fields that it freezes, by name,
// each with its new and its old value.
func ValidateImmutable(immutable, was *bool, data map[string][2]any) field.ErrorList {
	const frozen = "field is immutable when `immutable` is set"
	if was == nil || !*was {
		return nil
	}
	var errs field.ErrorList
	if immutable == nil || !*immutable {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), frozen))
	}
	for name, values := range data {
		if !apiequality.Semantic.DeepEqual(values[0], values[1]) {
			errs = append(errs, field.Forbidden(field.NewPath(name), frozen))
		}
	}
	return errs
}
