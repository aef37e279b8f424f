package controllers

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NamespaceLister is the part of a kind's lister that reads one namespace.
type NamespaceLister[O any] interface {
	Get(name string) (O, error)
}

// Live returns the object of a name as it is listed, and false where it is gone or being deleted.
func Live[O metav1.Object](lister NamespaceLister[O], name string) (obj O, ok bool, err error) {
	obj, err = lister.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return obj, false, nil
	case err != nil:
		return obj, false, err
	}
	return obj, obj.GetDeletionTimestamp() == nil, nil
}
