// Package namespace empties Namespaces that are being deleted and creates the default ServiceAccount of all others, like the
// controller manager of a cluster. Standalone servers need it.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

const (
	// defaultServiceAccount is the name of the ServiceAccount that each Namespace has.
	defaultServiceAccount = "default"
	// recheckPeriod is the time until the next attempt to empty a Namespace that still has objects.
	recheckPeriod = 200 * time.Millisecond
	// pageSize is the number of objects that are listed at a time.
	pageSize = 500
)

// Informers are the informers of Namespaces and of ServiceAccounts, with metadata at least.
type Informers struct {
	Namespaces, ServiceAccounts cache.SharedIndexInformer
}

// Reconciler reconciles one Namespace.
type Reconciler struct {
	Kubernetes kubernetes.Interface
	Objects    metadata.Interface
	// Resources are the contained resources, owners before their dependents.
	Resources []schema.GroupVersionResource
	Clock     clock.PassiveClock

	namespaces, accounts cache.Store
}

// Controller returns the controller that runs r.
func (r *Reconciler) Controller(informers Informers) (*reconciler.Controller, error) {
	r.namespaces, r.accounts = informers.Namespaces.GetStore(), informers.ServiceAccounts.GetStore()
	controller := reconciler.New("namespaces", r)
	if err := controller.Watch(informers.Namespaces, reconciler.KeyOf); err != nil {
		return nil, err
	}
	err := controller.Watch(informers.ServiceAccounts, func(obj metav1.Object) []types.NamespacedName {
		if obj.GetName() != defaultServiceAccount {
			return nil
		}
		return []types.NamespacedName{{Name: obj.GetNamespace()}}
	})
	if err != nil {
		return nil, err
	}
	return controller, nil
}

// Reconcile creates the default ServiceAccount of a Namespace, or empties a Namespace that is being deleted.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	found, exists, err := r.namespaces.GetByKey(key.Name)
	if err != nil || !exists || !request.Writes {
		return reconciler.Result{}, err
	}
	if n, ok := found.(metav1.Object); ok && n.GetDeletionTimestamp() == nil {
		return reconciler.Result{}, r.createServiceAccount(ctx, key.Name)
	}
	return r.terminate(ctx, key)
}

func (r *Reconciler) createServiceAccount(ctx context.Context, namespace string) error {
	if _, exists, err := r.accounts.GetByKey(namespace + "/" + defaultServiceAccount); err != nil || exists {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: defaultServiceAccount}}
	_, err := r.Kubernetes.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

// terminate deletes the content of a Namespace, and the Namespace once it is empty.
func (r *Reconciler) terminate(ctx context.Context, key types.NamespacedName) (reconciler.Result, error) {
	n, err := r.Kubernetes.CoreV1().Namespaces().Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return reconciler.Result{}, nil
	}
	if err != nil || n.DeletionTimestamp == nil {
		return reconciler.Result{}, err
	}
	if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return reconciler.Result{}, r.remove(ctx, n)
	}
	left, err := r.empty(ctx, key.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if len(left.counts) > 0 {
		return reconciler.Result{RequeueAfter: recheckPeriod}, r.report(ctx, n, left)
	}
	n.Spec.Finalizers = slices.DeleteFunc(n.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	if n, err = r.Kubernetes.CoreV1().Namespaces().Finalize(ctx, n, metav1.UpdateOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return reconciler.Result{}, nil
		}
		return reconciler.Result{}, fmt.Errorf("finalize namespace %q: %w", key.Name, err)
	}
	return reconciler.Result{}, r.remove(ctx, n)
}

// remove deletes a Namespace from storage, unless it has other finalizers.
func (r *Reconciler) remove(ctx context.Context, n *corev1.Namespace) error {
	if len(n.Spec.Finalizers) > 0 || len(n.Finalizers) > 0 {
		return nil
	}
	err := r.Kubernetes.CoreV1().Namespaces().Delete(ctx, n.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &n.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete namespace %q: %w", n.Name, err)
	}
	return nil
}

// remaining is the content of a Namespace that still exists.
type remaining struct {
	// counts are the numbers of objects by resource, in order; finalizers are the numbers of objects by finalizer.
	counts, finalizers []string
}

// empty deletes all objects of a Namespace and returns the remaining ones.
func (r *Reconciler) empty(ctx context.Context, namespace string) (remaining, error) {
	var left remaining
	var errs []error
	blocking := map[string]int{}
	for _, resource := range r.Resources {
		objects := r.Objects.Resource(resource).Namespace(namespace)
		err := objects.DeleteCollection(ctx, metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete %s of namespace %q: %w", resource.GroupResource(), namespace, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return left, err
	}
	// The lists follow all deletions: an object may have been created by a request that the API server admitted before the
	// Namespace was deleted.
	for _, resource := range r.Resources {
		count := 0
		err := r.each(ctx, resource, namespace, func(obj *metav1.PartialObjectMetadata) {
			count++
			for _, finalizer := range obj.Finalizers {
				blocking[finalizer]++
			}
		})
		if err != nil {
			return left, err
		}
		if count > 0 {
			left.counts = append(left.counts, fmt.Sprintf("%s has %d resource instances", resource.GroupResource(), count))
		}
	}
	for _, finalizer := range sets.List(sets.KeySet(blocking)) {
		left.finalizers = append(left.finalizers, fmt.Sprintf("%s in %d resource instances", finalizer, blocking[finalizer]))
	}
	return left, nil
}

// each calls fn for all objects of a resource in a Namespace, or in all Namespaces if it is empty.
func (r *Reconciler) each(ctx context.Context, resource schema.GroupVersionResource, namespace string, fn func(*metav1.PartialObjectMetadata)) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		list, err := r.Objects.Resource(resource).Namespace(namespace).List(ctx, options)
		if err != nil {
			return fmt.Errorf("list %s: %w", resource.GroupResource(), err)
		}
		for i := range list.Items {
			fn(&list.Items[i])
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
}

// report writes the objects that prevent the removal of a Namespace into its status.
func (r *Reconciler) report(ctx context.Context, n *corev1.Namespace, left remaining) error {
	n = n.DeepCopy()
	changed := false
	set := func(of corev1.NamespaceConditionType, reason, prefix string, parts []string) {
		condition := corev1.NamespaceCondition{Type: of, Status: corev1.ConditionFalse, Reason: "ContentRemoved", Message: "All content successfully removed"}
		if len(parts) > 0 {
			condition.Status, condition.Reason, condition.Message = corev1.ConditionTrue, reason, prefix+strings.Join(parts, ", ")
		}
		at := slices.IndexFunc(n.Status.Conditions, func(c corev1.NamespaceCondition) bool { return c.Type == of })
		if at < 0 {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NamespaceCondition{Type: of})
			at = len(n.Status.Conditions) - 1
		}
		old := &n.Status.Conditions[at]
		if old.Status == condition.Status && old.Message == condition.Message {
			return
		}
		condition.LastTransitionTime = metav1.NewTime(r.Clock.Now())
		if old.Status == condition.Status {
			condition.LastTransitionTime = old.LastTransitionTime
		}
		*old, changed = condition, true
	}
	set(corev1.NamespaceContentRemaining, "SomeResourcesRemain", "Some resources are remaining: ", left.counts)
	set(corev1.NamespaceFinalizersRemaining, "SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: ", left.finalizers)
	if !changed {
		return nil
	}
	_, err := r.Kubernetes.CoreV1().Namespaces().UpdateStatus(ctx, n, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// Ensure creates the missing Namespaces of some names, and of all objects of some resources.
func Ensure(ctx context.Context, client kubernetes.Interface, objects metadata.Interface, resources []schema.GroupVersionResource, names ...string) error {
	wanted := sets.New(names...)
	r := &Reconciler{Objects: objects}
	for _, resource := range resources {
		if err := r.each(ctx, resource, metav1.NamespaceAll, func(obj *metav1.PartialObjectMetadata) { wanted.Insert(obj.Namespace) }); err != nil {
			return err
		}
	}
	existing, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	for i := range existing.Items {
		wanted.Delete(existing.Items[i].Name)
	}
	for _, name := range sets.List(wanted) {
		_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
		case apierrors.IsInvalid(err):
			// Earlier versions accepted any path segment. Their objects stay readable, but no new objects can be created in them.
			klog.FromContext(ctx).Info("Namespace of stored objects has no valid name", "namespace", name)
		default:
			return fmt.Errorf("create namespace %q: %w", name, err)
		}
	}
	return nil
}
