package reconciler

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NamespaceLister is the part of a kind's lister that reads one namespace.
type NamespaceLister[O any] interface {
	Get(name string) (O, error)
}

// Listed returns the object of a name as it is listed, and false where it is gone. One that is being deleted is there
// until its finalizers are done, and serves as long.
func Listed[O any](lister NamespaceLister[O], name string) (obj O, ok bool, err error) {
	obj, err = lister.Get(name)
	if apierrors.IsNotFound(err) {
		return obj, false, nil
	}
	return obj, err == nil, err
}

// Live returns the object of a name as it is listed, and false where it is gone or being deleted.
func Live[O metav1.Object](lister NamespaceLister[O], name string) (obj O, ok bool, err error) {
	obj, ok, err = Listed(lister, name)
	return obj, ok && obj.GetDeletionTimestamp() == nil, err
}
