package broker

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// counters has the counters of objects, from the first time that they are served here until they are deleted: a change of owner
// neither removes nor resets them.
type counters[T any] struct{ byKey sync.Map }

// counted has the counters of one object.
type counted[T any] struct {
	uid    types.UID
	counts T
}

// of returns the counters of an object, which start at zero for an object with another UID.
func (c *counters[T]) of(key eventing.Key, uid types.UID) *T {
	for {
		found, ok := c.byKey.LoadOrStore(key, &counted[T]{uid: uid})
		if n := found.(*counted[T]); n.uid == uid {
			return &n.counts
		}
		if ok {
			c.byKey.CompareAndDelete(key, found)
		}
	}
}

// remove removes the counters of a deleted object, if there are any.
func (c *counters[T]) remove(key eventing.Key) { c.byKey.Delete(key) }

// each calls do with the counters of each object.
func (c *counters[T]) each(do func(eventing.Key, *T)) {
	c.byKey.Range(func(key, found any) bool {
		do(key.(eventing.Key), &found.(*counted[T]).counts)
		return true
	})
}
