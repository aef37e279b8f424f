// Package registry turns the rules of one resource into its storage: what all resources do alike is
// written here once, and each resource package adds its own rules and table columns.
package registry

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

// Object is an API object of one of our kinds.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource describes one resource: its names, its parts and its rules. O is the kind, Spec and Status the
// types of its two parts. Functions may be nil where a resource has no such rule, unless said otherwise.
type Resource[O Object, Spec, Status any] struct {
	// GroupVersion and Plural name the resource, Singular one object of it. Required.
	GroupVersion     schema.GroupVersion
	Plural, Singular string
	// ShortNames and Categories are what kubectl accepts besides the name.
	ShortNames, Categories []string

	// New and NewList return an empty object and list. Required.
	New     func() O
	NewList func() runtime.Object
	// Spec, Status and Common return the parts of an object; Common is what every status starts with. Required.
	Spec   func(O) *Spec
	Status func(O) *Status
	Common func(O) *duckv1.Status

	// Controllers recognizes the writes that only controllers may make.
	Controllers identity.Controllers
	// AllowCreate decides before anything else whether the request may create an object at all.
	AllowCreate func(ctx context.Context, obj O) error
	// ForeignStatus reports whether the status of the stored obj belongs to a controller outside this server, so that
	// everybody with the right to write it may. Nil means that all statuses are the controllers' alone.
	ForeignStatus func(ctx context.Context, obj O) (bool, error)
	// Default fills what an object leaves out, on every write.
	Default func(obj O)
	// DefaultOnCreate fills what is decided once, when an object is created.
	DefaultOnCreate func(obj O)
	// DefaultOnUpdate keeps from old what was decided once.
	DefaultOnUpdate func(ctx context.Context, obj, old O)
	// Validate returns all faults of an object to be created. Required.
	Validate func(ctx context.Context, obj O) field.ErrorList
	// ValidateUpdate returns all faults of an object that replaces old. Required.
	ValidateUpdate func(ctx context.Context, obj, old O) field.ErrorList

	// Warnings returns what of an object is accepted without effect, for the user who writes it.
	Warnings func(obj O) []string

	// SelectableFields are the fields that field selectors know besides name and namespace.
	SelectableFields func(O) fields.Set
	// Columns are the table columns after the name.
	Columns []Column[O]
}

func (r *Resource[O, Spec, Status]) groupResource() schema.GroupResource {
	return r.GroupVersion.WithResource(r.Plural).GroupResource()
}
