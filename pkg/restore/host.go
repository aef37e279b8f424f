package restore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"
)

// concurrentPatches bounds the number of concurrent patches of host objects.
const concurrentPatches = 16

// hostKind is a kind of host objects that objects of this server own.
type hostKind struct {
	name  string
	list  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	patch func(ctx context.Context, namespace, name string, patch []byte) error
}

func (r *run) hostKinds() []hostKind {
	deployments, services := r.Host.AppsV1().Deployments, r.Host.CoreV1().Services
	return []hostKind{
		{
			"Deployment",
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return deployments(metav1.NamespaceAll).List(ctx, o)
			},
			func(ctx context.Context, namespace, name string, patch []byte) error {
				_, err := deployments(namespace).Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{})
				return err
			},
		},
		{
			"Service",
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return services(metav1.NamespaceAll).List(ctx, o)
			},
			func(ctx context.Context, namespace, name string, patch []byte) error {
				_, err := services(namespace).Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{})
				return err
			},
		},
	}
}

// rewriteOwners replaces the UIDs of restored objects in the owner references of Deployments and core Services. Otherwise
// the garbage collector would delete them, with all Pods.
func (r *run) rewriteOwners(ctx context.Context) error {
	for _, kind := range r.hostKinds() {
		patches, ctx := errgroup.WithContext(ctx)
		patches.SetLimit(concurrentPatches)
		err := pager.New(kind.list).EachListItem(ctx, metav1.ListOptions{}, func(item runtime.Object) error {
			object, ok := item.(metav1.Object)
			if !ok || !r.isOutdated(object) || object.GetDeletionTimestamp() != nil {
				return nil
			}
			r.hostObjects++
			patches.Go(func() error { return r.patchOwners(ctx, kind, object) })
			return nil
		})
		if err := errors.Join(patches.Wait(), err); err != nil {
			return fmt.Errorf("rewrite owners of %ss of the host cluster: %w", kind.name, err)
		}
	}
	return nil
}

// isOutdated reports whether an object has an owner reference that must be rewritten.
func (r *run) isOutdated(object metav1.Object) bool {
	for _, owner := range object.GetOwnerReferences() {
		if _, outdated := r.owner(owner); outdated {
			return true
		}
	}
	return false
}

// owner returns the current UID of the owner, and whether the reference has an outdated one.
func (r *run) owner(reference metav1.OwnerReference) (types.UID, bool) {
	group := schema.FromAPIVersionAndKind(reference.APIVersion, "").Group
	if !slices.ContainsFunc(r.Resources, func(resource Resource) bool { return resource.Group == group }) {
		return "", false
	}
	uid := r.restored(reference.UID)
	return uid, uid != reference.UID
}

// operation is an operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patchOwners rewrites the owner references of a host object.
func (r *run) patchOwners(ctx context.Context, kind hostKind, object metav1.Object) error {
	patch := func(unblock bool) error {
		patch, err := r.ownerPatch(object, unblock)
		if err != nil {
			return err
		}
		return kind.patch(ctx, object.GetNamespace(), object.GetName(), patch)
	}
	err := patch(false)
	if apierrors.IsForbidden(err) {
		// The admission plugin OwnerReferencesPermissionEnforcement refuses references that block the deletion of an owner
		// whose API is not served.
		err = patch(true)
	}
	switch {
	case err == nil || apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err) || apierrors.IsBadRequest(err):
		// Policies of the host must not prevent the API from being served.
		r.Logger.Error(err, "Failed to rewrite owner references of host object; the garbage collector may delete it",
			"kind", kind.name, "namespace", object.GetNamespace(), "name", object.GetName())
		return nil
	default:
		return fmt.Errorf("patch %s \"%s/%s\": %w", kind.name, object.GetNamespace(), object.GetName(), err)
	}
}

// ownerPatch returns the patch of an object's owner references. It fails if they have changed.
func (r *run) ownerPatch(object metav1.Object, unblock bool) ([]byte, error) {
	owners := object.GetOwnerReferences()
	updated := make([]metav1.OwnerReference, len(owners))
	for i, owner := range owners {
		if uid, outdated := r.owner(owner); outdated {
			owner.UID = uid
			if unblock {
				owner.BlockOwnerDeletion = ptr.To(false)
			}
		}
		updated[i] = owner
	}
	const path = "/metadata/ownerReferences"
	return json.Marshal([]operation{{"test", path, owners}, {"replace", path, updated}})
}
