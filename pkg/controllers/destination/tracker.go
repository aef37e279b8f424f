package destination

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Queue accepts keys to reconcile.
type Queue interface {
	Enqueue(key types.NamespacedName)
	EnqueueAfter(key types.NamespacedName, after time.Duration)
}

// object is a referenced object. The version of its kind is irrelevant.
type object struct {
	kind schema.GroupKind
	name types.NamespacedName
}

// Tracker tracks which objects of one controller refer to which objects. The cost of a change is proportional to the number of
// referrers of the changed object.
type Tracker struct {
	resolver *Resolver
	queue    Queue

	// mu guards the fields below, which hold the same relation in both directions.
	mu        sync.Mutex
	referrers map[object]sets.Set[types.NamespacedName]
	objects   map[types.NamespacedName]sets.Set[object]
	// kinds is the number of objects of each kind that are referred to.
	kinds map[schema.GroupKind]int
}

func newTracker(r *Resolver, queue Queue) *Tracker {
	return &Tracker{
		resolver:  r,
		queue:     queue,
		referrers: map[object]sets.Set[types.NamespacedName]{},
		objects:   map[types.NamespacedName]sets.Set[object]{},
		kinds:     map[schema.GroupKind]int{},
	}
}

// Begin starts collecting the references of an object. References without a namespace refer to objects of its namespace.
// Earlier references remain until End.
func (t *Tracker) Begin(referrer types.NamespacedName) *References {
	return &References{
		tracker: t, referrer: referrer, seen: sets.New[object](),
		grants: grants{namespace: referrer.Namespace, all: t.resolver.allowCrossNamespace},
	}
}

// refersTo reports whether any object of the controller refers to a kind.
func (t *Tracker) refersTo(kind schema.GroupKind) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kinds[kind] > 0
}

// Forget drops all references of a deleted object.
func (t *Tracker) Forget(referrer types.NamespacedName) { t.Begin(referrer).End() }

// add enqueues a referrer whenever an object changes from now on.
func (t *Tracker) add(o object, referrer types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.referrers[o] == nil {
		t.referrers[o] = sets.New[types.NamespacedName]()
		t.kinds[o.kind]++
	}
	t.referrers[o].Insert(referrer)
	if t.objects[referrer] == nil {
		t.objects[referrer] = sets.New[object]()
	}
	t.objects[referrer].Insert(o)
}

// retain drops the references of a referrer except to the given objects. It returns the kinds without any remaining references.
func (t *Tracker) retain(referrer types.NamespacedName, some sets.Set[object]) sets.Set[schema.GroupKind] {
	t.mu.Lock()
	defer t.mu.Unlock()
	dropped := sets.New[schema.GroupKind]()
	for o := range t.objects[referrer].Difference(some) {
		if t.drop(o, referrer); t.kinds[o.kind] == 0 {
			dropped.Insert(o.kind)
		}
	}
	return dropped
}

// drop removes a pair from the relation. mu is held.
func (t *Tracker) drop(o object, referrer types.NamespacedName) {
	if t.referrers[o].Delete(referrer); t.referrers[o].Len() == 0 {
		delete(t.referrers, o)
		if t.kinds[o.kind]--; t.kinds[o.kind] == 0 {
			delete(t.kinds, o.kind)
		}
	}
	if t.objects[referrer].Delete(o); t.objects[referrer].Len() == 0 {
		delete(t.objects, referrer)
	}
}

// referring lists the objects that refer to one.
func (t *Tracker) referring(o object) []types.NamespacedName {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.referrers[o].UnsortedList()
}

// changed enqueues the referrers of an object.
func (t *Tracker) changed(o object) {
	for _, key := range t.referring(o) {
		t.queue.Enqueue(key)
	}
}

// kindChanged enqueues the referrers of all objects of a kind.
func (t *Tracker) kindChanged(kind schema.GroupKind) {
	t.mu.Lock()
	keys := sets.New[types.NamespacedName]()
	for o, referrers := range t.referrers {
		if o.kind == kind {
			keys = keys.Union(referrers)
		}
	}
	t.mu.Unlock()
	for key := range keys {
		t.queue.Enqueue(key)
	}
}
