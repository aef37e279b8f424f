package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// allowStatus returns an error unless the request may write the status of old, the stored object. RBAC is not sufficient,
// because the server trusts the status, for example the image digests of a Revision.
func (r *Resource[O, Spec, Status]) allowStatus(ctx context.Context, old O) error {
	if r.Controllers.Made(ctx) {
		return nil
	}
	if r.ForeignStatus != nil {
		foreign, err := r.ForeignStatus(ctx, old)
		if err != nil || foreign {
			return err
		}
	}
	return apierrors.NewForbidden(r.groupResource(), old.GetName(), errors.New(
		"status is written by the controllers of this server only; change spec instead"))
}

// statusStrategy implements the update strategy of the /status subresource: only the status changes.
type statusStrategy[O Object, Spec, Status any] struct {
	strategy[O, Spec, Status]
}

var _ rest.UpdateResetFieldsStrategy = statusStrategy[Object, any, any]{}

// AllowCreateOnUpdate returns false: a status requires an existing object.
func (statusStrategy[O, Spec, Status]) AllowCreateOnUpdate(context.Context) bool { return false }

// GetResetFields returns all fields except the status, for server-side apply.
func (s statusStrategy[O, Spec, Status]) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(s.GroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("spec"),
			fieldpath.MakePathOrDie("metadata"),
		),
	}
}

// PrepareForUpdate keeps all stored fields except the status.
func (s statusStrategy[O, Spec, Status]) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	o, oldO := obj.(O), old.(O)
	*s.Spec(o) = *s.Spec(oldO)
	metav1.ResetObjectMetaForStatus(o, oldO)
}

// WarningsOnUpdate returns no warnings: a status write does not change user input.
func (statusStrategy[O, Spec, Status]) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// ValidateUpdate returns the errors of the new conditions (serving 6-2, eventing Error Signalling).
func (s statusStrategy[O, Spec, Status]) ValidateUpdate(_ context.Context, obj, _ runtime.Object) field.ErrorList {
	return duckv1.ValidateConditions(s.Common(obj.(O)).Conditions, field.NewPath("status", "conditions"))
}
