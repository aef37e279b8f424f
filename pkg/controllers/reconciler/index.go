package reconciler

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// ByController is the name of the index of objects by the UID of their controller.
const ByController = "controller"

// IndexByController adds the index ByController to an informer, unless it is present. Call it before the informer starts.
func IndexByController(informer cache.SharedIndexInformer) error {
	return AddIndex(informer, ByController, func(obj any) ([]string, error) {
		if obj, ok := obj.(metav1.Object); ok {
			if owner := metav1.GetControllerOfNoCopy(obj); owner != nil {
				return []string{string(owner.UID)}, nil
			}
		}
		return nil, nil
	})
}

// AddIndex adds an index to an informer, unless it has one of that name.
func AddIndex(informer cache.SharedIndexInformer, name string, fn cache.IndexFunc) error {
	if _, ok := informer.GetIndexer().GetIndexers()[name]; ok {
		return nil
	}
	if err := informer.AddIndexers(cache.Indexers{name: fn}); err != nil {
		return fmt.Errorf("add index %q: %w", name, err)
	}
	return nil
}

// ControlledBy lists the objects that the object with a UID controls, in no particular order.
func ControlledBy[O any](indexer cache.Indexer, uid types.UID) ([]O, error) {
	return Indexed[O](indexer, ByController, string(uid))
}

// Indexed lists the objects that an index has under a value, in no particular order.
func Indexed[O any](indexer cache.Indexer, index, value string) ([]O, error) {
	found, err := indexer.ByIndex(index, value)
	if err != nil {
		return nil, fmt.Errorf("look up %q in index %q: %w", value, index, err)
	}
	objects := make([]O, 0, len(found))
	for _, obj := range found {
		if obj, ok := obj.(O); ok {
			objects = append(objects, obj)
		}
	}
	return objects, nil
}
