package reconciler

import (
	"k8s.io/client-go/tools/cache"
)

// Changes returns an informer whose handlers do not get updates for which same returns true: for objects with many dependents, which
// most updates do not affect.
func Changes[O any](informer cache.SharedIndexInformer, same func(old, current O) bool) cache.SharedIndexInformer {
	return changes[O]{informer, same}
}

type changes[O any] struct {
	cache.SharedIndexInformer
	same func(old, current O) bool
}

// AddEventHandler adds a handler that gets only relevant updates.
func (c changes[O]) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return c.SharedIndexInformer.AddEventHandler(filtered[O]{handler, c.same})
}

type filtered[O any] struct {
	cache.ResourceEventHandler
	same func(old, current O) bool
}

// OnUpdate forwards relevant updates.
func (h filtered[O]) OnUpdate(old, current any) {
	before, ok := old.(O)
	if after, is := current.(O); ok && is && h.same(before, after) {
		return
	}
	h.ResourceEventHandler.OnUpdate(old, current)
}
