package registry

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// StatusREST stores the status of one resource.
type StatusREST struct{ store *genericregistry.Store }

var (
	_ rest.Patcher             = &StatusREST{}
	_ rest.ResetFieldsStrategy = &StatusREST{}
	_ rest.TableConvertor      = &StatusREST{}
)

// NewStorage returns the storage of a resource and of its /status subresource, by resource path.
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
		TableConvertor:            newTableConvertor(r),
	}
	if r.AllowCreate != nil {
		// Every way to create an object passes here: POST, and PUT or apply of a new name.
		store.BeginCreate = func(ctx context.Context, obj runtime.Object, _ *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
			return func(context.Context, bool) {}, r.AllowCreate(ctx, obj.(O))
		}
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: r.attributes}); err != nil {
		return nil, fmt.Errorf("setting up storage of %s: %w", r.groupResource(), err)
	}

	status := *store
	status.UpdateStrategy = statusRules
	status.ResetFieldsStrategy = statusRules
	return map[string]rest.Storage{
		r.Plural:             &REST{Store: store, shortNames: r.ShortNames, categories: r.Categories},
		r.Plural + "/status": &StatusREST{store: &status},
	}, nil
}

// ShortNames are abbreviations that clients accept for the resource.
func (r *REST) ShortNames() []string { return r.shortNames }

// Categories are the groups of resources that this one is listed with.
func (r *REST) Categories() []string { return r.categories }

// Create stores a new object.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	created, err := r.Store.Create(ctx, obj, validate, options)
	return created, tooLarge(err)
}

// Update replaces an object, or creates it.
func (r *REST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	updated, created, err := r.Store.Update(ctx, name, objInfo, createValidation, updateValidation, forceAllowCreate, options)
	return updated, created, tooLarge(err)
}

// New returns an empty object.
func (r *StatusREST) New() runtime.Object { return r.store.New() }

// Destroy does nothing: the store is shared with the resource, which destroys it.
func (r *StatusREST) Destroy() {}

// Get reads an object; a patch of the status starts from it.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update replaces the status of an object that is there; it never creates one.
func (r *StatusREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc, updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	updated, created, err := r.store.Update(ctx, name, objInfo, createValidation, updateValidation, false, options)
	return updated, created, tooLarge(err)
}

// GetResetFields tells server-side apply which fields a status write leaves alone.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable renders the object as kubectl get does.
func (r *StatusREST) ConvertToTable(ctx context.Context, object runtime.Object, tableOptions runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, tableOptions)
}

// tooLarge turns etcd's refusal of a large value, which would reach the client as an internal error, into
// the client error it is.
func tooLarge(err error) error {
	if err == nil {
		return nil
	}
	var etcdErr rpctypes.EtcdError
	if errors.Is(err, rpctypes.ErrRequestTooLarge) || errors.As(err, &etcdErr) && etcdErr.Code() == codes.ResourceExhausted && !errors.Is(err, rpctypes.ErrNoSpace) ||
		grpcstatus.Code(err) == codes.ResourceExhausted {
		return apierrors.NewRequestEntityTooLargeError("the object, with its managed fields, is larger than the storage accepts (by default 1.5 MiB)")
	}
	return err
}
