// Package objectmetrics implements the API resources servicemetrics.serving.knative.dev and eventmetrics.eventing.knative.dev: how many requests and events
// each object had. Nothing of it is in etcd.
package objectmetrics

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/knative-apiserver/knative-apiserver/pkg/objectmetrics"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Reader reads the metrics of the objects of a namespace at all replicas, of all namespaces if it is empty. incomplete lists the replicas that do not answer.
type Reader interface {
	Read(ctx context.Context, namespace string) (all []objectmetrics.Replica, incomplete []string, err error)
}

// Late has a Reader that is set after the API is served. The zero value has none.
type Late = registry.Late[Reader]

// object is an object of the resource.
type object interface {
	runtime.Object
	metav1.Object
}

// kind is what differs between the resources.
type kind[O object] struct {
	resource schema.GroupResource
	singular string
	// newObject and newList return empty ones; newList has items.
	newObject func() O
	newList   func(items []O, meta metav1.ListMeta) runtime.Object
	// find returns the object of an entry, without its replicas, or false for entries of other kinds.
	find func(objectmetrics.Object) (O, bool)
	// add adds the values of an entry at a replica.
	add func(o O, replica *objectmetrics.Replica, values map[objectmetrics.Field]float64)
	// fields returns the values of the fields that field selectors may use.
	fields func(O) fields.Set
}

// REST serves the metrics of objects of some kinds.
type REST[O object] struct {
	rest.TableConvertor
	kind   kind[O]
	reader *Late
}

// New returns an empty object.
func (r *REST[O]) New() runtime.Object { return r.kind.newObject() }

// NewList returns an empty list.
func (r *REST[O]) NewList() runtime.Object { return r.kind.newList(nil, metav1.ListMeta{}) }

// Destroy does nothing: the replicas have the metrics.
func (*REST[O]) Destroy() {}

// NamespaceScoped returns true.
func (*REST[O]) NamespaceScoped() bool { return true }

// GetSingularName returns the name of one object.
func (r *REST[O]) GetSingularName() string { return r.kind.singular }

// Get returns the metrics of one object.
func (r *REST[O]) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	all, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(o O) bool { return o.GetName() == name })
	if i < 0 {
		return nil, apierrors.NewNotFound(r.kind.resource, name)
	}
	return all[i], nil
}

// List returns the metrics of the objects that are selected, in the order of their names.
func (r *REST[O]) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	all, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	if options == nil {
		options = &metainternalversion.ListOptions{}
	}
	all = slices.DeleteFunc(all, func(o O) bool {
		return options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(o.GetLabels())) || options.FieldSelector != nil && !options.FieldSelector.Matches(r.kind.fields(o))
	})
	if options.Continue != "" {
		last, err := base64.RawURLEncoding.DecodeString(options.Continue)
		if err != nil {
			return nil, apierrors.NewBadRequest("parameter 'continue' must be the value of a list")
		}
		all = slices.DeleteFunc(all, func(o O) bool { return key(o) <= string(last) })
	}
	list := metav1.ListMeta{}
	if limit := int(options.Limit); limit > 0 && limit < len(all) {
		rest := int64(len(all) - limit)
		all = all[:limit]
		list.Continue, list.RemainingItemCount = base64.RawURLEncoding.EncodeToString([]byte(key(all[limit-1]))), &rest
	}
	return r.kind.newList(all, list), nil
}

// key is the position of an object in a list.
func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// read returns the metrics of all objects of the namespace of a request, sorted. A missing replica is a warning.
func (r *REST[O]) read(ctx context.Context) ([]O, error) {
	reader := r.reader.Load()
	if reader == nil {
		return nil, apierrors.NewServiceUnavailable("the metrics of the replicas are not read yet")
	}
	replicas, incomplete, err := (*reader).Read(ctx, request.NamespaceValue(ctx))
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	for _, message := range incomplete {
		warning.AddWarning(ctx, "", "incomplete: "+message)
	}
	found := map[objectmetrics.Object]O{}
	var all []O
	for i := range replicas {
		for _, entry := range replicas[i].Entries {
			o, known := found[entry.Object]
			if !known {
				if o, known = r.kind.find(entry.Object); !known {
					continue
				}
				found[entry.Object] = o
				all = append(all, o)
			}
			r.kind.add(o, &replicas[i], entry.Values)
		}
	}
	slices.SortFunc(all, func(a, b O) int { return strings.Compare(key(a), key(b)) })
	return all, nil
}
