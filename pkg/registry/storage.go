package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// REST stores one resource in etcd.
type REST struct {
	*genericregistry.Store
	shortNames, categories []string
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
	_ rest.CategoriesProvider = &REST{}
)

// NewREST returns the storage of a resource in store, with the abbreviations and categories that clients accept.
func NewREST(store *genericregistry.Store, shortNames, categories []string) *REST {
	return &REST{Store: store, shortNames: shortNames, categories: categories}
}

// NewStatusREST returns the storage of a subresource in store. It never creates an object.
func NewStatusREST(store *genericregistry.Store) *StatusREST { return &StatusREST{store: store} }

// StatusREST stores the status of one resource.
type StatusREST struct{ store *genericregistry.Store }

var (
	_ rest.Patcher             = &StatusREST{}
	_ rest.ResetFieldsStrategy = &StatusREST{}
	_ rest.TableConvertor      = &StatusREST{}
)

// NewStorage returns the storage of a resource and of its /status subresource if it has a status, by resource path.
func NewStorage[O Object, Spec, Status any](r *Resource[O, Spec, Status], typer runtime.ObjectTyper, getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	main, statusRules := Strategies(r, typer)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return r.New() },
		NewListFunc:               r.NewList,
		PredicateFunc:             r.matching,
		DefaultQualifiedResource:  r.groupResource(),
		SingularQualifiedResource: r.GroupVersion.WithResource(r.Singular).GroupResource(),
		CreateStrategy:            main,
		UpdateStrategy:            main,
		DeleteStrategy:            main,
		ResetFieldsStrategy:       main,
		TableConvertor:            NewTableConvertor(append([]Column[O]{NameColumn[O]()}, r.Columns...)...),
	}
	if r.AllowCreate != nil {
		// Every create passes here: POST, and PUT or apply of a new name.
		store.BeginCreate = func(ctx context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
			return func(context.Context, bool) {}, r.AllowCreate(ctx, obj.(O))
		}
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: r.attributes}); err != nil {
		return nil, fmt.Errorf("set up storage of %s: %w", r.groupResource(), err)
	}

	paths := map[string]rest.Storage{r.Plural: NewREST(store, r.ShortNames, r.Categories)}
	if r.Status == nil {
		return paths, nil
	}
	status := *store
	status.UpdateStrategy = statusRules
	status.ResetFieldsStrategy = statusRules
	status.BeginUpdate = func(ctx context.Context, _, old runtime.Object, _ *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		return func(context.Context, bool) {}, r.allowStatus(ctx, old.(O))
	}
	paths[r.Plural+"/status"] = NewStatusREST(&status)
	return paths, nil
}

// ShortNames are abbreviations that clients accept for the resource.
func (r *REST) ShortNames() []string { return r.shortNames }

// Categories are the groups of resources that include this one.
func (r *REST) Categories() []string { return r.categories }

// Create stores a new object.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	created, err := r.Store.Create(ctx, obj, validate, options)
	return created, refusal(err)
}

// Update replaces an object, or creates it.
func (r *REST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	objInfo = requestedObject{objInfo, r.DefaultQualifiedResource}
	updated, created, err := r.Store.Update(ctx, name, objInfo, createValidation, updateValidation, forceAllowCreate, options)
	return updated, created, refusal(err)
}

// New returns an empty object.
func (r *StatusREST) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the parent resource owns the store.
func (r *StatusREST) Destroy() {}

// Get reads an object, which a patch of the status requires.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update replaces the status of an existing object; it never creates one.
func (r *StatusREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	objInfo = requestedObject{objInfo, r.store.DefaultQualifiedResource}
	updated, created, err := r.store.Update(ctx, name, objInfo, createValidation, updateValidation, false, options)
	return updated, created, refusal(err)
}

// GetResetFields returns the fields that a status write does not change, for server-side apply.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable renders the object as in kubectl get.
func (r *StatusREST) ConvertToTable(ctx context.Context, object runtime.Object, tableOptions runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, tableOptions)
}

// refusal converts an error of the store for clients.
func refusal(err error) error {
	var status *apierrors.StatusError
	switch {
	case err == nil:
		return nil
	case isTooLarge(err):
		return apierrors.NewRequestEntityTooLargeError("the object, including its managed fields, exceeds the size limit of the storage (by default 1.5 MiB)")
	case errors.As(err, &status) && status.ErrStatus.Details != nil:
		// The generic checks validate the metadata of an update twice, and return its errors twice.
		seen := sets.New[metav1.StatusCause]()
		status.ErrStatus.Details.Causes = slices.DeleteFunc(status.ErrStatus.Details.Causes, func(cause metav1.StatusCause) bool {
			repeated := seen.Has(cause)
			seen.Insert(cause)
			return repeated
		})
	}
	return err
}

// isTooLarge reports whether etcd or its client rejected a value because of its size. Clients would otherwise receive an
// internal error.
func isTooLarge(err error) bool {
	return errors.Is(err, rpctypes.ErrRequestTooLarge) ||
		grpcstatus.Code(err) == codes.ResourceExhausted && !errors.Is(err, rpctypes.ErrNoSpace)
}
