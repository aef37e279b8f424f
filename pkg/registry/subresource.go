package registry

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// GetAs returns an object of a type from a store, for a subresource of it.
func GetAs[O Object](ctx context.Context, store rest.Getter, name string, options *metav1.GetOptions) (object O, err error) {
	stored, err := store.Get(ctx, name, options)
	if err != nil {
		return object, err
	}
	object, ok := stored.(O)
	if !ok {
		return object, apierrors.NewInternalError(fmt.Errorf("the stored object is a %T", stored))
	}
	return object, nil
}

// BodyAs returns the body of a POST to a subresource of an object. Its metadata.name must be empty or the name of the object, whose kind errors name.
func BodyAs[B Object](body runtime.Object, kind, name string) (B, error) {
	asked, ok := body.(B)
	if !ok {
		return asked, apierrors.NewInternalError(fmt.Errorf("the body of the request is a %T", body))
	}
	if asked.GetName() != "" && asked.GetName() != name {
		return asked, apierrors.NewBadRequest(fmt.Sprintf("metadata.name must be empty or '%s', the name of the %s", name, kind))
	}
	return asked, nil
}
