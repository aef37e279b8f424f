package reconciler

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NamespaceLister is the part of a kind's lister that reads one namespace.
type NamespaceLister[O any] interface {
	Get(name string) (O, error)
}

// Listed returns the listed object of a name, and false if it does not exist. An object that is being deleted exists, and is served,
// until its finalizers are removed.
func Listed[O any](lister NamespaceLister[O], name string) (obj O, ok bool, err error) {
	obj, err = lister.Get(name)
	if apierrors.IsNotFound(err) {
		return obj, false, nil
	}
	return obj, err == nil, err
}

// Live returns the listed object of a name, and false if it does not exist or is being deleted.
func Live[O metav1.Object](lister NamespaceLister[O], name string) (obj O, ok bool, err error) {
	obj, ok, err = Listed(lister, name)
	return obj, ok && obj.GetDeletionTimestamp() == nil, err
}
