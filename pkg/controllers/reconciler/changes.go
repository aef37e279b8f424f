package reconciler

import (
	"k8s.io/client-go/tools/cache"
)

// Changes returns an informer whose handlers hear of no update of an object that is the same to them: for objects
// that many others depend on, which most of their updates do not concern.
func Changes[O any](informer cache.SharedIndexInformer, same func(old, current O) bool) cache.SharedIndexInformer {
	return changes[O]{informer, same}
}

type changes[O any] struct {
	cache.SharedIndexInformer
	same func(old, current O) bool
}

// AddEventHandler adds a handler for what matters to it.
func (c changes[O]) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return c.SharedIndexInformer.AddEventHandler(heeding[O]{handler, c.same})
}

type heeding[O any] struct {
	cache.ResourceEventHandler
	same func(old, current O) bool
}

// OnUpdate passes on updates that matter.
func (h heeding[O]) OnUpdate(old, current any) {
	before, ok := old.(O)
	if after, is := current.(O); ok && is && h.same(before, after) {
		return
	}
	h.ResourceEventHandler.OnUpdate(old, current)
}
