package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// Reconcile deletes an object whose owners no longer exist, and removes the finalizer of an object that waited for its dependents.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	k, name := r.split(request.Key)
	if k == nil || !request.Writes {
		return reconciler.Result{}, nil
	}
	obj := k.find(request.Key.Namespace, name)
	switch {
	case obj == nil:
		return reconciler.Result{}, nil
	case awaits(obj, metav1.FinalizerDeleteDependents):
		return reconciler.Result{}, r.finish(ctx, k, obj)
	case awaits(obj, metav1.FinalizerOrphanDependents):
		return reconciler.Result{}, r.orphan(ctx, k, obj)
	case obj.GetDeletionTimestamp() != nil:
		return reconciler.Result{}, nil
	default:
		return reconciler.Result{}, r.collect(ctx, k, obj)
	}
}

// ownership is the effect of an owner on its dependents.
type ownership int

const (
	// solid owners keep their dependents.
	solid ownership = iota
	// waiting owners are deleted in the foreground: after their dependents.
	waiting
	// absent owners do not exist.
	absent
)

// collect deletes an object that no owner keeps. If only some owners keep it, collect removes the references to the others.
func (r *Reconciler) collect(ctx context.Context, k *kind, obj metav1.Object) error {
	references := obj.GetOwnerReferences()
	if len(references) == 0 {
		return nil
	}
	counts := map[ownership]int{}
	owners := map[types.UID]ownership{}
	for _, reference := range references {
		owner, err := r.ownership(ctx, obj.GetNamespace(), reference)
		if err != nil {
			return fmt.Errorf("look up owner %s %q: %w", reference.Kind, reference.Name, err)
		}
		owners[reference.UID] = owner
		counts[owner]++
	}
	switch counts[solid] {
	case len(references):
		return nil
	case 0:
		return r.remove(ctx, k, obj, counts[waiting] > 0)
	default:
		return r.patch(ctx, k, obj, "ownerReferences", without(references, func(reference metav1.OwnerReference) bool {
			return owners[reference.UID] != solid
		}))
	}
}

// ownership looks up an owner, at the server if the informer does not have it. Owners of kinds that this server does not serve
// belong to other collectors, and count as solid.
func (r *Reconciler) ownership(ctx context.Context, namespace string, reference metav1.OwnerReference) (ownership, error) {
	k := r.kindOf(reference)
	if k == nil {
		return solid, nil
	}
	owner := k.get(namespace, reference.Name, reference.UID)
	if owner == nil {
		if _, known := r.absent.Get(reference.UID); known {
			return absent, nil
		}
		stored, err := r.client.Resource(k.GroupVersionResource).Namespace(namespace).Get(ctx, reference.Name, metav1.GetOptions{})
		gone := apierrors.IsNotFound(err)
		if err != nil && !gone {
			return solid, err
		}
		if gone || stored.UID != reference.UID {
			r.absent.Add(reference.UID, struct{}{})
			return absent, nil
		}
		owner = stored
	}
	if awaits(owner, metav1.FinalizerDeleteDependents) {
		return waiting, nil
	}
	return solid, nil
}

// remove deletes the observed version of an object. If an owner waits for the object, its deletion waits for its own dependents
// too, unless one of them waits already: then the objects own each other in a cycle.
func (r *Reconciler) remove(ctx context.Context, k *kind, obj metav1.Object, awaited bool) error {
	dependents, circle := false, false
	r.eachDependent(obj.GetUID(), func(_ *kind, dependent metav1.Object) bool {
		dependents = true
		circle = awaits(dependent, metav1.FinalizerDeleteDependents)
		return !circle
	})
	policy := metav1.DeletePropagationBackground
	switch {
	case slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case awaited && dependents && !circle:
		policy = metav1.DeletePropagationForeground
	}
	err := r.client.Resource(k.GroupVersionResource).Namespace(obj.GetNamespace()).Delete(ctx, obj.GetName(), metav1.DeleteOptions{
		PropagationPolicy: &policy,
		// A newer object may have other owners.
		Preconditions: &metav1.Preconditions{UID: ptr.To(obj.GetUID()), ResourceVersion: ptr.To(obj.GetResourceVersion())},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete object without owners: %w", err)
	}
	return nil
}

// finish removes the finalizer of an object that is deleted in the foreground, once no dependent blocks the deletion. Its
// dependents are collected separately, and their deletion enqueues the object.
func (r *Reconciler) finish(ctx context.Context, k *kind, obj metav1.Object) error {
	blocked := false
	r.eachDependent(obj.GetUID(), func(_ *kind, dependent metav1.Object) bool {
		blocked = blocks(dependent, obj.GetUID())
		return !blocked
	})
	if blocked {
		return nil
	}
	return r.dropFinalizer(ctx, k, obj, metav1.FinalizerDeleteDependents)
}

// orphan removes the references of the dependents to an object, and then its finalizer. It lists the dependents at the server,
// because a dependent that the informers do not have yet would be deleted when its owner no longer exists.
func (r *Reconciler) orphan(ctx context.Context, k *kind, obj metav1.Object) error {
	var errs []error
	for _, of := range r.kinds {
		list, err := r.client.Resource(of.GroupVersionResource).Namespace(obj.GetNamespace()).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s to orphan: %w", of.Resource.Resource, err)
		}
		for i := range list.Items {
			dependent := &list.Items[i]
			left := without(dependent.OwnerReferences, func(reference metav1.OwnerReference) bool { return reference.UID == obj.GetUID() })
			if len(left) == len(dependent.OwnerReferences) {
				continue
			}
			errs = append(errs, r.patch(ctx, of, dependent, "ownerReferences", left))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.dropFinalizer(ctx, k, obj, metav1.FinalizerOrphanDependents)
}

func (r *Reconciler) dropFinalizer(ctx context.Context, k *kind, obj metav1.Object, finalizer string) error {
	left := slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), func(f string) bool { return f == finalizer })
	return r.patch(ctx, k, obj, "finalizers", left)
}

// patch replaces a list of an object's metadata, unless the object has changed since it was observed.
func (r *Reconciler) patch(ctx context.Context, k *kind, obj metav1.Object, field string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             obj.GetUID(),
		"resourceVersion": obj.GetResourceVersion(),
		field:             value,
	}})
	if err != nil {
		return err
	}
	_, err = r.client.Resource(k.GroupVersionResource).Namespace(obj.GetNamespace()).Patch(ctx, obj.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("change %s of %s %q: %w", field, k.Kind, obj.GetName(), err)
	}
	return nil
}
