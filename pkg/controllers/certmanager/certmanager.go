// Package certmanager creates Certificates of cert-manager for public host names of Routes and DomainMappings, and reports their states.
// cert-manager stores each certificate in a Secret, which hostcerts reads.
package certmanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/shorten"
)

// patience is how long objects wait for the first list of Certificates. Beyond it their states are unknown until it comes.
const patience = 2 * time.Second

// Resource is the resource of Certificates.
var Resource = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}

// Object is a Route or DomainMapping.
type Object struct {
	Meta metav1.Object
	Kind schema.GroupVersionKind
	// Labels are the labels of its Certificates.
	Labels map[string]string
}

// owner returns the Object as the owner of host names.
func (o *Object) owner() hostcerts.Owner {
	return hostcerts.Owner{Kind: o.Kind.Kind, Key: types.NamespacedName{Namespace: o.Meta.GetNamespace(), Name: o.Meta.GetName()}}
}

// Certificate is a wanted Certificate. Its Secret has the same name.
type Certificate struct{ Name, Host string }

// State is the state of a wanted Certificate.
type State struct {
	// Problem is why it is not ready, as a clause without a full stop. Empty if it is ready.
	Problem string
	// Failed is true if only a change of its cause makes it ready, or a much later attempt.
	Failed bool
	// NotOwned is true if its name belongs to another object.
	NotOwned bool
}

// Manager writes Certificates in the host cluster. Its methods may be called concurrently.
type Manager struct {
	client dynamic.Interface
	logger klog.Logger
	// definition has the CustomResourceDefinition of Certificates.
	definition *watch
	// settled is closed once the state of the API is known, or has not been for some time.
	settled chan struct{}
	settle  func()
	// wake is sent to after changes of the definition.
	wake chan struct{}

	// mu guards the fields below. No subscriber is called while it is held.
	mu          sync.Mutex
	subscribers []func(hostcerts.Owner)
	// certificates is nil while the host is not known to serve Certificates, absent is true if it is known not to.
	certificates *watch
	absent       bool
	// wanted are the owners of wanted Certificates by name, and byOwner the inverse.
	wanted  map[types.NamespacedName]hostcerts.Owner
	byOwner map[hostcerts.Owner][]types.NamespacedName
}

// New returns a Manager. client reaches the host cluster.
func New(client dynamic.Interface, logger klog.Logger) (*Manager, error) {
	m := &Manager{
		client: client, logger: logger, settled: make(chan struct{}), wake: make(chan struct{}, 1),
		wanted: map[types.NamespacedName]hostcerts.Owner{}, byOwner: map[hostcerts.Owner][]types.NamespacedName{},
	}
	m.settle = sync.OnceFunc(func() { close(m.settled) })
	var err error
	m.definition, err = m.watchDefinition()
	return m, err
}

// Subscribe makes changed be called when the State of an owner's Certificate changes. It must not block.
func (m *Manager) Subscribe(changed func(hostcerts.Owner)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.subscribers = append(m.subscribers, changed)
}

// States records the wanted Certificates of an object, and returns their states by host name. Subscribers learn of changes. It waits for the first
// list of Certificates for a limited time.
func (m *Manager) States(ctx context.Context, o *Object, issuer settings.Issuer, wanted []Certificate) map[string]State {
	m.want(o, wanted)
	states := make(map[string]State, len(wanted))
	if len(wanted) == 0 {
		return states
	}
	select {
	case <-m.settled:
	case <-ctx.Done():
	}
	listed, problem := m.listed()
	for _, c := range wanted {
		switch {
		case problem != nil:
			states[c.Host] = *problem
		case issuer == settings.Issuer{}:
			states[c.Host] = State{Problem: fmt.Sprintf("%s has no issuerRef", settings.CertManagerConfigMapName), Failed: true}
		default:
			states[c.Host] = m.state(listed, o, c.Name)
		}
	}
	return states
}

// state returns the state of a Certificate among the listed ones.
func (m *Manager) state(listed cache.Indexer, o *Object, name string) State {
	existing, err := get(listed, o.Meta.GetNamespace(), name)
	switch {
	case err != nil:
		return State{Problem: err.Error()}
	case existing == nil:
		return State{Problem: "its Certificate of cert-manager has not been created yet"}
	case !o.owns(existing):
		return State{Problem: fmt.Sprintf("there is an existing Certificate %q of another owner", name), NotOwned: true}
	}
	return stateOf(existing)
}

// Apply creates and updates the wanted Certificates of an object, and deletes its others. It returns the states of the ones that it could not
// write, by host name, and the errors to retry. The Certificates of other owners are not changed. The host's garbage collector deletes
// Certificates with the object.
func (m *Manager) Apply(ctx context.Context, o *Object, issuer settings.Issuer, wanted []Certificate) (map[string]State, error) {
	listed, problem := m.listed()
	if problem != nil {
		// The objects are enqueued when this changes.
		return nil, nil
	}
	owned, err := reconciler.Indexed[*unstructured.Unstructured](listed, reconciler.ByController, string(o.Meta.GetUID()))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, existing := range owned {
		if !slices.ContainsFunc(wanted, func(c Certificate) bool { return c.Name == existing.GetName() }) {
			errs = append(errs, m.remove(ctx, existing))
		}
	}
	failed := map[string]State{}
	if issuer == (settings.Issuer{}) {
		return failed, errors.Join(errs...)
	}
	for _, c := range wanted {
		err := m.apply(ctx, listed, o, desired(o, issuer, c))
		switch {
		case errors.Is(err, errNotOwned):
			failed[c.Host] = State{Problem: err.Error(), NotOwned: true}
		case apierrors.IsConflict(err):
			errs = append(errs, err)
		case err != nil:
			failed[c.Host] = State{Problem: shorten.Text(err.Error(), maxMessage), Failed: reconciler.Refused(err)}
			errs = append(errs, err)
		}
	}
	return failed, errors.Join(errs...)
}

// errNotOwned is the error of a Certificate that belongs to another owner.
var errNotOwned = errors.New("the name of the Certificate belongs to another owner")

func (m *Manager) apply(ctx context.Context, listed cache.Indexer, o *Object, desired *unstructured.Unstructured) error {
	client := m.client.Resource(Resource).Namespace(desired.GetNamespace())
	existing, err := get(listed, desired.GetNamespace(), desired.GetName())
	if err != nil {
		return err
	}
	if existing == nil {
		_, err := client.Create(ctx, desired, metav1.CreateOptions{FieldManager: fieldManager})
		switch {
		case err == nil:
			return nil
		case !apierrors.IsAlreadyExists(err):
			return fmt.Errorf("create Certificate %q: %w", desired.GetName(), err)
		}
	} else if o.owns(existing) && adapted(existing, desired) == nil {
		return nil
	}
	// Listed objects are incomplete, and the list may lag behind.
	if existing, err = client.Get(ctx, desired.GetName(), metav1.GetOptions{}); err != nil {
		return fmt.Errorf("read Certificate %q: %w", desired.GetName(), err)
	}
	if !o.owns(existing) {
		return errNotOwned
	}
	updated := adapted(existing, desired)
	if updated == nil {
		return nil
	}
	if _, err := client.Update(ctx, updated, metav1.UpdateOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("update Certificate %q: %w", desired.GetName(), err)
	}
	return nil
}

func (m *Manager) remove(ctx context.Context, certificate *unstructured.Unstructured) error {
	err := m.client.Resource(Resource).Namespace(certificate.GetNamespace()).
		Delete(ctx, certificate.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(certificate.GetUID()))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete Certificate %q: %w", certificate.GetName(), err)
	}
	return nil
}

// want replaces the names of the wanted Certificates of an object.
func (m *Manager) want(o *Object, wanted []Certificate) {
	owner := o.owner()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(owner)
	for _, c := range wanted {
		key := types.NamespacedName{Namespace: owner.Key.Namespace, Name: c.Name}
		m.wanted[key] = owner
		m.byOwner[owner] = append(m.byOwner[owner], key)
	}
}

// Forget ends reports about the Certificates of a deleted object.
func (m *Manager) Forget(owner hostcerts.Owner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(owner)
}

func (m *Manager) forget(owner hostcerts.Owner) {
	for _, key := range m.byOwner[owner] {
		if m.wanted[key] == owner {
			delete(m.wanted, key)
		}
	}
	delete(m.byOwner, owner)
}

// changed notifies the owners of a Certificate.
func (m *Manager) changed(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	certificate, ok := obj.(metav1.Object)
	if !ok {
		return
	}
	var owners []hostcerts.Owner
	namespace := certificate.GetNamespace()
	if controller := metav1.GetControllerOfNoCopy(certificate); controller != nil && isOurs(controller) {
		owners = append(owners, hostcerts.Owner{Kind: controller.Kind, Key: types.NamespacedName{Namespace: namespace, Name: controller.Name}})
	}
	m.mu.Lock()
	wanting, ok := m.wanted[types.NamespacedName{Namespace: namespace, Name: certificate.GetName()}]
	m.mu.Unlock()
	if ok && !slices.Contains(owners, wanting) {
		owners = append(owners, wanting)
	}
	m.notify(owners)
}

// allChanged notifies the owners of all wanted Certificates.
func (m *Manager) allChanged() {
	m.mu.Lock()
	owners := slices.Collect(maps.Keys(m.byOwner))
	m.mu.Unlock()
	m.notify(owners)
}

func (m *Manager) notify(owners []hostcerts.Owner) {
	m.mu.Lock()
	subscribers := m.subscribers
	m.mu.Unlock()
	for _, changed := range subscribers {
		for _, owner := range owners {
			changed(owner)
		}
	}
}

// Standalone is the Manager of a server without a host cluster, and so without cert-manager.
type Standalone struct{}

// States returns the states of wanted Certificates, which all fail.
func (Standalone) States(_ context.Context, _ *Object, _ settings.Issuer, wanted []Certificate) map[string]State {
	states := make(map[string]State, len(wanted))
	for _, c := range wanted {
		states[c.Host] = State{Problem: "this server runs without a cluster, where cert-manager would run", Failed: true}
	}
	return states
}

// Apply does nothing.
func (Standalone) Apply(context.Context, *Object, settings.Issuer, []Certificate) (map[string]State, error) {
	return nil, nil
}

// Subscribe does nothing: the states never change.
func (Standalone) Subscribe(func(hostcerts.Owner)) {}

// Forget does nothing.
func (Standalone) Forget(hostcerts.Owner) {}

// get returns a listed Certificate, or nil.
func get(listed cache.Indexer, namespace, name string) (*unstructured.Unstructured, error) {
	obj, ok, err := listed.GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil, err
	}
	certificate, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("unexpected %T among Certificates", obj)
	}
	return certificate, nil
}

// isTrue reports whether a condition has this status.
func isTrue(status string) bool { return status == string(corev1.ConditionTrue) }
