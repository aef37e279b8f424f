package registry

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// matching returns the predicate of a label and a field selector.
func (r *Resource[O, Spec, Status]) matching(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: r.attributes}
}

// attributes returns the labels and fields of an object for selectors.
func (r *Resource[O, Spec, Status]) attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	o, ok := obj.(O)
	if !ok {
		return nil, nil, fmt.Errorf("unexpected %T among %s", obj, r.Plural)
	}
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	if r.SelectableFields != nil {
		for key, value := range r.SelectableFields(o) {
			set[key] = value
		}
	}
	return labels.Set(o.GetLabels()), set, nil
}
