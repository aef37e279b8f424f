// Package event implements Kubernetes' core/v1 Events for a server without a host cluster.
package event

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
)

// ttl is the lifetime of an Event since its last write, as in Kubernetes by default.
const ttl = time.Hour

// events stores Events in etcd.
type events struct{ *genericregistry.Store }

var (
	_ rest.StandardStorage    = &events{}
	_ rest.ShortNamesProvider = &events{}
)

// ShortNames are abbreviations that clients accept for the resource.
func (*events) ShortNames() []string { return []string{"ev"} }

// NewStorage returns the storage of Events, by resource path.
func NewStorage(typer runtime.ObjectTyper, getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	resource := corev1.Resource("events")
	options, err := getter.GetRESTOptions(resource, &corev1.Event{})
	if err != nil {
		return nil, fmt.Errorf("set up storage of events: %w", err)
	}
	// Events are written often and read rarely: a watch cache would only waste memory.
	options.Decorator = generic.UndecoratedStorage

	rules := newStrategy(typer)
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &corev1.Event{} },
		NewListFunc:               func() runtime.Object { return &corev1.EventList{} },
		PredicateFunc:             matching,
		TTLFunc:                   func(runtime.Object, uint64, bool) (uint64, error) { return uint64(ttl / time.Second), nil },
		DefaultQualifiedResource:  resource,
		SingularQualifiedResource: corev1.Resource("event"),
		CreateStrategy:            rules,
		UpdateStrategy:            rules,
		DeleteStrategy:            rules,
		TableConvertor:            newTableConvertor(),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: attributes}); err != nil {
		return nil, fmt.Errorf("set up storage of events: %w", err)
	}
	return map[string]rest.Storage{"events": &events{store}}, nil
}

// matching returns the predicate of a label and a field selector.
func matching(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attributes}
}

// attributes returns the labels and fields of an Event for selectors.
func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	event, ok := obj.(*corev1.Event)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not an Event", obj)
	}
	return event.Labels, selectable(event), nil
}

// selectable returns the fields that field selectors support.
func selectable(event *corev1.Event) fields.Set {
	source := event.Source.Component
	if source == "" {
		source = event.ReportingController
	}
	involved := event.InvolvedObject
	return fields.Set{
		"metadata.name":                  event.Name,
		"metadata.namespace":             event.Namespace,
		"involvedObject.kind":            involved.Kind,
		"involvedObject.namespace":       involved.Namespace,
		"involvedObject.name":            involved.Name,
		"involvedObject.uid":             string(involved.UID),
		"involvedObject.apiVersion":      involved.APIVersion,
		"involvedObject.resourceVersion": involved.ResourceVersion,
		"involvedObject.fieldPath":       involved.FieldPath,
		"reason":                         event.Reason,
		"reportingComponent":             event.ReportingController,
		"source":                         source,
		"type":                           event.Type,
	}
}

// AddFieldLabels registers the field selectors of Events with a scheme.
func AddFieldLabels(scheme *runtime.Scheme) error {
	known := selectable(&corev1.Event{})
	return scheme.AddFieldLabelConversionFunc(corev1.SchemeGroupVersion.WithKind("Event"), func(label, value string) (string, string, error) {
		if !known.Has(label) {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return label, value, nil
	})
}
