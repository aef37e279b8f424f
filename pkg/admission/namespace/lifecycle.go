// Package namespace applies the lifecycle of Namespaces to writes, for a server without a host cluster: creating an object
// also creates its Namespace, and Namespaces that are being deleted accept no new objects.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

// maxLag is the time after the deletion of a Namespace for which the watch cache is not asked for it.
const maxLag = 30 * time.Second

// Permanent returns the names of the Namespaces that always exist on a server without a host cluster. The ConfigMaps of the
// settings are in knative-system.
func Permanent() []string {
	return []string{metav1.NamespaceDefault, metav1.NamespaceSystem, "knative-system"}
}

// Storage reads and creates Namespaces.
type Storage interface {
	rest.Getter
	rest.Creater //nolint:misspell // the name in k8s.io/apiserver
}

// Lifecycle is an admission plugin.
type Lifecycle struct {
	*admission.Handler
	controllers identity.Controllers
	permanent   sets.Set[string]
	storage     Storage
	// deleted are the names of the Namespaces that were deleted shortly ago.
	deleted *cache.Expiring
}

var _ admission.ValidationInterface = &Lifecycle{}

// New returns the plugin. SetStorage must be called before the first request. The Namespaces named by permanent cannot be
// deleted.
func New(controllers identity.Controllers, permanent ...string) *Lifecycle {
	return &Lifecycle{
		Handler:     admission.NewHandler(admission.Create, admission.Delete),
		controllers: controllers,
		permanent:   sets.New(permanent...),
		deleted:     cache.NewExpiring(),
	}
}

// SetStorage sets the storage of Namespaces.
func (l *Lifecycle) SetStorage(storage Storage) { l.storage = storage }

// Validate admits a validated object, and creates its Namespace if it does not exist. Controllers create no Namespaces:
// their late writes about an object of a deleted Namespace must not recreate that Namespace.
func (l *Lifecycle) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() == corev1.Resource("namespaces") {
		if a.GetOperation() != admission.Delete {
			return nil
		}
		if l.permanent.Has(a.GetName()) {
			return apierrors.NewForbidden(a.GetResource().GroupResource(), a.GetName(), errors.New("this namespace may not be deleted"))
		}
		l.deleted.Set(a.GetName(), nil, maxLag)
		return nil
	}
	if a.GetOperation() != admission.Create || a.GetNamespace() == "" || a.GetSubresource() != "" {
		return nil
	}
	outside := request.WithNamespace(ctx, metav1.NamespaceNone)
	if l.isActive(outside, a.GetNamespace()) {
		return nil
	}
	found, err := l.storage.Get(outside, a.GetNamespace(), &metav1.GetOptions{})
	switch {
	case err == nil:
		if isTerminating(found) {
			return terminating(a)
		}
		return nil
	case !apierrors.IsNotFound(err):
		return apierrors.NewInternalError(fmt.Errorf("get namespace %q: %w", a.GetNamespace(), err))
	case l.controllers.Made(ctx):
		return err
	case a.IsDryRun():
		return nil
	}
	n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.GetNamespace()}}
	_, err = l.storage.Create(outside, n, func(context.Context, runtime.Object) error { return nil }, &metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// isActive reports whether the watch cache has a Namespace that is not being deleted. It saves reads of etcd, each of which takes as long as a
// write. All deletions pass this plugin.
func (l *Lifecycle) isActive(ctx context.Context, name string) bool {
	if _, deleted := l.deleted.Get(name); deleted {
		return false
	}
	found, err := l.storage.Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"})
	return err == nil && !isTerminating(found)
}

func isTerminating(obj runtime.Object) bool {
	n, ok := obj.(*corev1.Namespace)
	return ok && n.Status.Phase == corev1.NamespaceTerminating
}

// terminating returns the error for a new object in a Namespace that is being deleted, with the cause that clients check.
func terminating(a admission.Attributes) error {
	err := admission.NewForbidden(a, fmt.Errorf("unable to create new content in namespace %s because it is being terminated", a.GetNamespace()))
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", a.GetNamespace()),
			Field:   "metadata.namespace",
		})
	}
	return err
}
