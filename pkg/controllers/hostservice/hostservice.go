// Package hostservice gives objects of this server core Services in the host cluster, by which pods reach them: a
// Service has no endpoints of its own, its name is an alias of the name of the gateway or of the broker.
package hostservice

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// fieldManager is the field manager of the Services.
const fieldManager = "knative-apiserver"

// Options configure Services.
type Options struct {
	// Client reaches the host cluster.
	Client typedcorev1.ServicesGetter
	// Informer was returned by NewInformer. Several kinds may share it. The caller runs it.
	Informer cache.SharedIndexInformer
	// Kind is the kind of the objects that get Services, and LabelKey the label of a Service that names its object.
	Kind     schema.GroupVersionKind
	LabelKey string
	// Target is the DNS name that the Services are aliases of.
	Target string
}

// Services are the core Services of the objects of one kind. Its methods may be called concurrently.
type Services struct {
	Options

	// mu guards waiting: by Service of another owner, the object to enqueue when it changes.
	mu      sync.Mutex
	waiting map[types.NamespacedName]types.NamespacedName
}

// New returns the Services of a kind. Call it before the informer runs.
func New(o Options) (*Services, error) {
	if err := reconciler.IndexByController(o.Informer); err != nil {
		return nil, err
	}
	return &Services{Options: o, waiting: map[types.NamespacedName]types.NamespacedName{}}, nil
}

// NotOwned is the error of a Service that exists and has another owner. It is not changed.
type NotOwned struct {
	// Service is the core Service.
	Service types.NamespacedName
	// Kind is the kind of the object that needs it.
	Kind string
}

// Error returns the conflict and how to resolve it.
func (e *NotOwned) Error() string {
	return fmt.Sprintf("There is a core Service %q already that does not belong to the %s. Delete it, or give the %s another name.", e.Service, e.Kind, e.Kind)
}

// Track makes a controller of the kind reconcile the objects whose Services change or become available. Call it before the controller
// and the informer run.
func (s *Services) Track(controller *reconciler.Controller) error {
	return controller.Watch(s.Informer, func(obj metav1.Object) []types.NamespacedName {
		var keys []types.NamespacedName
		if owner := metav1.GetControllerOfNoCopy(obj); owner != nil && s.isKind(owner) {
			keys = append(keys, types.NamespacedName{Namespace: obj.GetNamespace(), Name: owner.Name})
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if waiting, ok := s.waiting[keyOf(obj)]; ok {
			keys = append(keys, waiting)
		}
		return keys
	})
}

// Apply creates and updates the Services of an object with the given names, in its namespace and with its labels and annotations, and
// deletes its others. It returns *NotOwned if a name has another owner and nothing else failed; the other names are applied in any
// case. The host's garbage collector deletes the Services with the object.
func (s *Services) Apply(ctx context.Context, owner metav1.Object, names []string) error {
	owned, err := reconciler.Indexed[*corev1.Service](s.Informer.GetIndexer(), reconciler.ByController, string(owner.GetUID()))
	if err != nil {
		return err
	}
	s.forget(keyOf(owner), names)
	var errs []error
	for _, service := range owned {
		if !slices.Contains(names, service.Name) {
			errs = append(errs, s.remove(ctx, service))
		}
	}
	var conflict error
	for _, name := range names {
		err := s.apply(ctx, owner, s.desired(owner, name))
		if _, ok := errors.AsType[*NotOwned](err); ok {
			conflict = cmp.Or(conflict, err)
			continue
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return conflict
}

func (s *Services) apply(ctx context.Context, owner metav1.Object, desired *corev1.Service) error {
	key := keyOf(desired)
	// Recorded before the read, so that no change in between is missed.
	s.wait(key, keyOf(owner))
	existing, err := s.get(key)
	if err != nil {
		return err
	}
	if existing == nil {
		_, err = s.Client.Services(key.Namespace).Create(ctx, desired, metav1.CreateOptions{FieldManager: fieldManager})
		if err == nil {
			s.unwait(key)
			return nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create core Service %q: %w", key, err)
		}
		// The informer lags behind.
		if existing, err = s.Client.Services(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("read core Service %q: %w", key, err)
		}
	}
	if !s.owns(existing, owner) {
		return &NotOwned{Service: key, Kind: s.Kind.Kind}
	}
	s.unwait(key)
	updated := adapted(existing, desired)
	if updated == nil {
		return nil
	}
	if _, err := s.Client.Services(key.Namespace).Update(ctx, updated, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("update core Service %q: %w", key, err)
	}
	return nil
}

// get returns a Service from the informer, or nil.
func (s *Services) get(key types.NamespacedName) (*corev1.Service, error) {
	obj, ok, err := s.Informer.GetIndexer().GetByKey(key.String())
	if err != nil || !ok {
		return nil, err
	}
	service, _ := obj.(*corev1.Service)
	return service, nil
}

// owns reports whether a Service belongs to an object. The Service of an earlier object of the same name belongs to it too, so that the
// name resolves all the time.
func (s *Services) owns(service *corev1.Service, owner metav1.Object) bool {
	controller := metav1.GetControllerOfNoCopy(service)
	return controller != nil && s.isKind(controller) && controller.Name == owner.GetName()
}

func (s *Services) isKind(owner *metav1.OwnerReference) bool {
	return owner.Kind == s.Kind.Kind && schema.FromAPIVersionAndKind(owner.APIVersion, "").Group == s.Kind.Group
}

func (s *Services) remove(ctx context.Context, service *corev1.Service) error {
	err := s.Client.Services(service.Namespace).Delete(ctx, service.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(service.UID))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete core Service %q: %w", keyOf(service), err)
	}
	return nil
}

func (s *Services) wait(service, owner types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[service] = owner
}

// Labelled returns the names of an object's Services that a user gave a label with this value. Labels that are copied from
// the object do not count.
func (s *Services) Labelled(owner metav1.Object, key, value string) ([]string, error) {
	owned, err := reconciler.Indexed[*corev1.Service](s.Informer.GetIndexer(), reconciler.ByController, string(owner.GetUID()))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, service := range owned {
		if service.Labels[key] != value {
			continue
		}
		if labels, _ := written(service.ManagedFields); !has(labels, "f:"+key) {
			names = append(names, service.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func has(keys map[string]struct{}, key string) bool {
	_, found := keys[key]
	return found
}

// Forget stops waiting for the names that a deleted object could not get.
func (s *Services) Forget(owner types.NamespacedName) { s.forget(owner, nil) }

// forget ends the wait of an object for all names of its namespace except wanted.
func (s *Services) forget(owner types.NamespacedName, wanted []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.waiting, func(service, waiting types.NamespacedName) bool {
		return waiting == owner && !slices.Contains(wanted, service.Name)
	})
}

func (s *Services) unwait(service types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, service)
}

func keyOf(obj metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
}
