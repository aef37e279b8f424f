package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// requestedObject is the object that an update asks for, with answers to requests that cannot be fulfilled
// that the library has none for.
type requestedObject struct {
	rest.UpdatedObjectInfo
	resource schema.GroupResource
}

// UpdatedObject returns what old becomes.
func (r requestedObject) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	obj, err := r.UpdatedObjectInfo.UpdatedObject(ctx, old)
	if err != nil {
		return nil, clientError(ctx, err)
	}
	return obj, r.refuseRevival(obj, old)
}

// clientError makes an error that is no Status yet the client's: patches that do not fit the schema (an
// unknown field in an apply, a list item without its merge key) would otherwise be answered with 500.
func clientError(ctx context.Context, err error) error {
	var status apierrors.APIStatus
	if ctx.Err() != nil || errors.As(err, &status) {
		return err
	}
	return apierrors.NewBadRequest(err.Error())
}

// refuseRevival keeps a write that starts from a stored object from bringing it back after it was deleted:
// its resourceVersion is as stale as one can be.
func (r requestedObject) refuseRevival(obj, old runtime.Object) error {
	o, ok := obj.(Object)
	if stored, isOurs := old.(Object); ok && isOurs && stored.GetResourceVersion() == "" && o.GetResourceVersion() != "" {
		return apierrors.NewConflict(r.resource, o.GetName(),
			errors.New("the object has been modified: it was deleted; leave metadata.resourceVersion out to create it anew"))
	}
	return nil
}
