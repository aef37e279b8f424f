package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
)

// requestedObject is the requested object of an update. It adds errors for invalid requests for which the library has no
// specific ones.
type requestedObject struct {
	rest.UpdatedObjectInfo
	resource schema.GroupResource
}

// UpdatedObject returns the object that replaces old.
func (r requestedObject) UpdatedObject(ctx context.Context, old runtime.Object) (runtime.Object, error) {
	obj, err := r.UpdatedObjectInfo.UpdatedObject(ctx, old)
	if err != nil {
		return nil, clientError(ctx, err)
	}
	return obj, r.refuseRevival(obj, old)
}

// clientError converts an error without a Status to BadRequest: patches that do not match the schema (an unknown field in an
// apply, a list item without its merge key) would otherwise result in status 500.
func clientError(ctx context.Context, err error) error {
	var status apierrors.APIStatus
	if ctx.Err() != nil || errors.As(err, &status) {
		return err
	}
	return apierrors.NewBadRequest(err.Error())
}

// refuseRevival rejects a write that would recreate an object that was deleted after the client read it: the resourceVersion
// is stale.
func (r requestedObject) refuseRevival(obj, old runtime.Object) error {
	o, ok := obj.(Object)
	if stored, isOurs := old.(Object); ok && isOurs && stored.GetResourceVersion() == "" && o.GetResourceVersion() != "" {
		return apierrors.NewConflict(r.resource, o.GetName(),
			errors.New("the object has been modified: it was deleted; omit metadata.resourceVersion to create it again"))
	}
	return nil
}
