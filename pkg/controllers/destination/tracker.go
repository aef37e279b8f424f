package destination

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Queue takes keys to be reconciled.
type Queue interface {
	Enqueue(key types.NamespacedName)
	EnqueueAfter(key types.NamespacedName, after time.Duration)
}

// object is something that can be referred to. The version of its kind does not matter.
type object struct {
	kind schema.GroupKind
	name types.NamespacedName
}

// Tracker knows which objects of one controller refer to which objects. What it does for a change grows with the
// objects that refer to what changed.
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

// References are what one object refers to, collected while it is reconciled. One goroutine may use them.
type References struct {
	tracker  *Tracker
	referrer types.NamespacedName
	seen     sets.Set[object]
	denied   bool
}

// Denied tells whether any of the objects referred to so far exists in another namespace and does not grant it. Events
// are not to go on to where it was before, as they are while an object is missing.
func (refs *References) Denied() bool { return refs.denied }

// Begin begins to collect what an object of the controller refers to, in its own namespace where a reference names
// none. What it referred to before counts until End.
func (t *Tracker) Begin(referrer types.NamespacedName) *References {
	return &References{tracker: t, referrer: referrer, seen: sets.New[object]()}
}

// End forgets what the object does not refer to any more. Where it is not called, because of an error, the object
// is reconciled for too much until it is.
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

// Forget forgets all that an object refers to that is gone.
func (t *Tracker) Forget(referrer types.NamespacedName) { t.Begin(referrer).End() }

// add notes that the referrer is to be reconciled when an object changes, from now on.
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

// drop takes a pair from the relation. It is called with mu held.
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

// changed has the objects reconciled that refer to one.
func (t *Tracker) changed(o object) {
	for _, key := range t.referring(o) {
		t.queue.Enqueue(key)
	}
}

// kindChanged has all objects reconciled that refer to one of a kind.
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
