package garbage

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// byOwner is the index of objects by the UIDs of all their owners.
const byOwner = "owner"

func ownersOf(obj any) ([]string, error) {
	object, ok := obj.(metav1.Object)
	if !ok {
		return nil, nil
	}
	var uids []string
	for _, reference := range object.GetOwnerReferences() {
		uids = append(uids, string(reference.UID))
	}
	return uids, nil
}

// get returns the object of a name from the informer, if it has the UID.
func (k *kind) get(namespace, name string, uid types.UID) metav1.Object {
	if obj := k.find(namespace, name); obj != nil && obj.GetUID() == uid {
		return obj
	}
	return nil
}

// find returns the object of a name from the informer, or nil.
func (k *kind) find(namespace, name string) metav1.Object {
	found, exists, err := k.objects.GetByKey(namespace + "/" + name)
	if err != nil || !exists {
		return nil
	}
	obj, _ := found.(metav1.Object)
	return obj
}

// kindOf returns the kind of an owner, or nil if this server does not serve it. Versions are ignored.
func (r *Reconciler) kindOf(reference metav1.OwnerReference) *kind {
	gv, err := schema.ParseGroupVersion(reference.APIVersion)
	if err != nil {
		return nil
	}
	return r.byKind[schema.GroupKind{Group: gv.Group, Kind: reference.Kind}]
}

// eachDependent calls fn for all objects that have an owner of the UID, until it returns false.
func (r *Reconciler) eachDependent(uid types.UID, fn func(*kind, metav1.Object) bool) {
	for _, k := range r.kinds {
		dependents, err := k.objects.ByIndex(byOwner, string(uid))
		if err != nil {
			continue
		}
		for _, dependent := range dependents {
			if obj, ok := dependent.(metav1.Object); ok && !fn(k, obj) {
				return
			}
		}
	}
}

// awaits reports whether an object is being deleted and has a finalizer that only the collector removes.
func awaits(obj metav1.Object, finalizer string) bool {
	return obj.GetDeletionTimestamp() != nil && slices.Contains(obj.GetFinalizers(), finalizer)
}

// blocks reports whether a dependent keeps the owner of a UID from being deleted in the foreground.
func blocks(dependent metav1.Object, uid types.UID) bool {
	return slices.ContainsFunc(dependent.GetOwnerReferences(), func(reference metav1.OwnerReference) bool {
		return reference.UID == uid && reference.BlockOwnerDeletion != nil && *reference.BlockOwnerDeletion
	})
}

// without returns the owner references that drop rejects.
func without(references []metav1.OwnerReference, drop func(metav1.OwnerReference) bool) []metav1.OwnerReference {
	return slices.DeleteFunc(slices.Clone(references), drop)
}
