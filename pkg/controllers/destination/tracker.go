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

	// mu guards what follows, which is the same relation seen from both ends.
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

// References are the objects that one object refers to, collected while it is reconciled. Not safe for concurrent use.
type References struct {
	tracker  *Tracker
	referrer types.NamespacedName
	seen     sets.Set[object]
	denied   bool
}

// Denied reports whether any of the objects referenced so far exists in another namespace and does not grant the reference. Its
// former address must not get events then, unlike the address of a missing object.
func (refs *References) Denied() bool { return refs.denied }

// Begin starts to collect the references of an object. References without a namespace are to the object's own one. Earlier
// references remain until End.
func (t *Tracker) Begin(referrer types.NamespacedName) *References {
	return &References{tracker: t, referrer: referrer, seen: sets.New[object]()}
}

// End drops the references that the object no longer has. If an error prevents the call, the object is enqueued for more changes than
// necessary.
func (refs *References) End() {
	t := refs.tracker
	t.mu.Lock()
	dropped := sets.New[schema.GroupKind]()
	for o := range t.objects[refs.referrer].Difference(refs.seen) {
		if t.drop(o, refs.referrer); t.kinds[o.kind] == 0 {
			dropped.Insert(o.kind)
		}
	}
	t.mu.Unlock()
	if host := t.resolver.host; host != nil {
		for kind := range dropped {
			host.unreferred(kind)
		}
	}
}

// refersTo reports whether any object of the controller refers to a kind.
func (t *Tracker) refersTo(kind schema.GroupKind) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kinds[kind] > 0
}

// Forget drops all references of an object that is gone.
func (t *Tracker) Forget(referrer types.NamespacedName) { t.Begin(referrer).End() }

// add enqueues the referrer whenever the object changes from now on.
func (refs *References) add(o object) {
	refs.seen.Insert(o)
	t := refs.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.referrers[o] == nil {
		t.referrers[o] = sets.New[types.NamespacedName]()
		t.kinds[o.kind]++
	}
	t.referrers[o].Insert(refs.referrer)
	if t.objects[refs.referrer] == nil {
		t.objects[refs.referrer] = sets.New[object]()
	}
	t.objects[refs.referrer].Insert(o)
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
