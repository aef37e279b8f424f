// Package registry implements the storage of API resources: behavior that all resources share is in this package, and each
// resource package adds its own rules and table columns.
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

// Object is an API object of one of the kinds in pkg/apis.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource describes one resource: its names, its parts and its rules. O is the kind, Spec and Status the types of its
// parts. Functions are optional unless marked required.
type Resource[O Object, Spec, Status any] struct {
	// GroupVersion and Plural identify the resource, Singular is the name of one object. Required.
	GroupVersion     schema.GroupVersion
	Plural, Singular string
	// ShortNames and Categories are further names that kubectl accepts.
	ShortNames, Categories []string

	// New and NewList return an empty object and list. Required.
	New     func() O
	NewList func() runtime.Object
	// ClusterScoped is true if the objects are in no namespace.
	ClusterScoped bool

	// Spec returns the spec of an object. Required.
	Spec func(O) *Spec
	// Status and Common return the status of an object and the part of it that all kinds share. Both are nil for a kind without
	// a status.
	Status func(O) *Status
	Common func(O) *duckv1.Status

	// Controllers recognizes writes by controllers.
	Controllers identity.Controllers
	// AllowCreate reports whether the request may create an object. It is called before all other checks.
	AllowCreate func(ctx context.Context, obj O) error
	// ForeignStatus reports whether a controller outside this server owns the status of the stored obj, so that any
	// authorized user may write it. Nil means that only this server's controllers write statuses.
	ForeignStatus func(ctx context.Context, obj O) (bool, error)
	// Default sets defaults on every write.
	Default func(obj O)
	// DefaultOnCreate sets defaults on create only.
	DefaultOnCreate func(obj O)
	// DefaultOnUpdate keeps the values of old that DefaultOnCreate set.
	DefaultOnUpdate func(ctx context.Context, obj, old O)
	// Validate returns all errors of a new object. Required.
	Validate func(ctx context.Context, obj O) field.ErrorList
	// ValidateUpdate returns all errors of an object that replaces old. Required.
	ValidateUpdate func(ctx context.Context, obj, old O) field.ErrorList

	// Warnings returns a warning for each field that is accepted but has no effect.
	Warnings func(obj O) []string
	// Observations returns warnings that depend on what the server has observed so far. old is the zero value for a new object. It must not
	// delay the write noticeably.
	Observations func(ctx context.Context, obj, old O) []string

	// SelectableFields are the supported fields of field selectors in addition to name and namespace.
	SelectableFields func(O) fields.Set
	// Columns are the table columns after the name.
	Columns []Column[O]
}

func (r *Resource[O, Spec, Status]) groupResource() schema.GroupResource {
	return r.GroupVersion.WithResource(r.Plural).GroupResource()
}
