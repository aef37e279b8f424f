package namespace

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core"
)

// REST stores Namespaces. It embeds an interface without DeleteCollection: as in Kubernetes, Namespaces are deleted one by one.
type REST struct {
	namespaces
	rest *registry.REST
}

// namespaces are the verbs of Namespaces except delete.
type namespaces interface {
	rest.Storage
	rest.Scoper
	rest.Getter
	rest.Lister
	rest.Watcher
	rest.Creater //nolint:misspell // the name in k8s.io/apiserver
	rest.Updater
	rest.TableConvertor
	rest.SingularNameProvider
	rest.ShortNamesProvider
	rest.ResetFieldsStrategy
}

var (
	_ rest.GracefulDeleter = &REST{}
	_ namespaces           = &REST{}
)

// NewStorage returns the storage of Namespaces and of their subresources, by resource path.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	store, err := core.NewStore(Resource(), typer, getter)
	if err != nil {
		return nil, err
	}
	store.ReturnDeletedObject = true
	store.ShouldDeleteDuringUpdate = func(ctx context.Context, key string, obj, existing runtime.Object) bool {
		n, ok := obj.(*corev1.Namespace)
		return ok && len(n.Spec.Finalizers) == 0 && genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, existing)
	}
	subresource := func(r core.Resource[*corev1.Namespace]) *registry.StatusREST {
		of, rules := *store, core.NewStrategy(r, typer)
		of.UpdateStrategy, of.ResetFieldsStrategy = rules, rules
		return registry.NewStatusREST(&of)
	}
	main := registry.NewREST(store, Resource().ShortNames, nil)
	return map[string]rest.Storage{
		"namespaces":          &REST{namespaces: main, rest: main},
		"namespaces/status":   subresource(statusResource()),
		"namespaces/finalize": &finalizeREST{subresource(finalizeResource())},
	}, nil
}

// finalizeREST replaces the finalizers of a Namespace. It offers no GET and no PATCH.
type finalizeREST struct{ updater }

type updater interface {
	rest.Storage
	rest.Updater
	rest.ResetFieldsStrategy
}

// Delete marks a Namespace for deletion. It is removed once its content is deleted and its finalizers are removed.
func (r *REST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	found, err := r.rest.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	n := found.(*corev1.Namespace)
	if n.DeletionTimestamp != nil {
		if len(n.Spec.Finalizers) > 0 {
			return n, false, nil
		}
		return r.rest.Delete(ctx, name, validate, options)
	}
	return r.terminate(ctx, n, validate, options)
}

// terminate sets the deletion timestamp and the phase Terminating.
func (r *REST) terminate(ctx context.Context, n *corev1.Namespace, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	preconditions := &storage.Preconditions{UID: ptr.To(n.UID)}
	dry := false
	if options != nil {
		dry = dryrun.IsDryRun(options.DryRun)
		if p := options.Preconditions; p != nil {
			if p.UID != nil && *p.UID != n.UID {
				return nil, false, apierrors.NewConflict(corev1.Resource("namespaces"), n.Name,
					errors.New("the UID in the precondition is not the UID of the Namespace"))
			}
			preconditions.ResourceVersion = p.ResourceVersion
		}
	}
	key, err := r.rest.KeyFunc(ctx, n.Name)
	if err != nil {
		return nil, false, err
	}
	out := r.rest.New()
	err = r.rest.Storage.GuaranteedUpdate(ctx, key, out, false, preconditions, storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
		current := existing.(*corev1.Namespace)
		if validate != nil {
			if err := validate(ctx, current); err != nil {
				return nil, err
			}
		}
		if current.DeletionTimestamp == nil {
			current.DeletionTimestamp = ptr.To(metav1.Now())
		}
		current.Status.Phase = corev1.NamespaceTerminating
		return current, nil
	}), dry, nil)
	if err != nil {
		err = storageerr.InterpretGetError(err, corev1.Resource("namespaces"), n.Name)
		return nil, false, storageerr.InterpretUpdateError(err, corev1.Resource("namespaces"), n.Name)
	}
	return out, false, nil
}
