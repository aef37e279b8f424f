// Package revisions keeps the data of a workload about each Revision, each under its own lock, and publishes the State of each
// Revision after changes.
package revisions

import (
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// Revision is the data of a workload about one Revision. Implementations embed *Entry, whose lock is held during calls.
type Revision interface {
	// Observe returns the current State, or nil if the workload has not observed any.
	Observe() *workload.State
	// Unused reports whether the Revision can be deleted from the table.
	Unused() bool
	// Deleted is called when the Revision is deleted from the table.
	Deleted()

	entry() *Entry
}

// Table holds Revisions by key. Its methods may be called concurrently.
type Table[R Revision] struct {
	create func(*Entry) R

	mu          sync.RWMutex
	revisions   map[types.NamespacedName]R
	subscribers []func(types.NamespacedName, workload.State)
}

// New returns an empty table. create returns the data of a new Revision, which embeds the entry.
func New[R Revision](create func(*Entry) R) *Table[R] {
	return &Table[R]{create: create, revisions: map[types.NamespacedName]R{}}
}

// Lock returns a Revision with its lock held, and false if the table does not hold it.
func (t *Table[R]) Lock(key types.NamespacedName) (R, bool) {
	r, ok := t.get(key)
	if !ok {
		return r, false
	}
	e := r.entry()
	e.Lock()
	if e.deleted {
		e.mu.Unlock()
		var none R
		return none, false
	}
	return r, true
}

// LockOrCreate is like Lock, but creates missing Revisions.
func (t *Table[R]) LockOrCreate(key types.NamespacedName) R {
	for {
		if r, ok := t.Lock(key); ok {
			return r
		}
		t.mu.Lock()
		if _, ok := t.revisions[key]; !ok {
			e := &Entry{Key: key, table: t}
			r := t.create(e)
			e.revision = r
			t.revisions[key] = r
		}
		t.mu.Unlock()
	}
}

// All returns all Revisions, without their locks.
func (t *Table[R]) All() []R {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := make([]R, 0, len(t.revisions))
	for _, r := range t.revisions {
		all = append(all, r)
	}
	return all
}

// State returns the latest State of a Revision, and false if it has none.
func (t *Table[R]) State(key types.NamespacedName) (workload.State, bool) {
	r, ok := t.get(key)
	if !ok {
		return workload.State{}, false
	}
	state := r.entry().state.Load()
	if state == nil {
		return workload.State{}, false
	}
	return *state, true
}

// Subscribe adds a function to call after each change of a State, in order for each Revision. The zero State means that the Revision
// no longer has one. fn may call the table.
func (t *Table[R]) Subscribe(fn func(types.NamespacedName, workload.State)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.subscribers = append(slices.Clone(t.subscribers), fn)
}

func (t *Table[R]) get(key types.NamespacedName) (R, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	r, ok := t.revisions[key]
	return r, ok
}

func (t *Table[R]) publish(key types.NamespacedName, state workload.State) {
	t.mu.RLock()
	subscribers := t.subscribers
	t.mu.RUnlock()
	for _, fn := range subscribers {
		fn(key, state)
	}
}

func (t *Table[R]) remove(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.revisions, key)
}

// Entry is the place of a Revision in a Table.
type Entry struct {
	// Key names the Revision.
	Key types.NamespacedName

	table interface {
		publish(key types.NamespacedName, state workload.State)
		remove(key types.NamespacedName)
	}
	revision Revision
	// state is the latest State, or nil if the workload has not observed any.
	state atomic.Pointer[workload.State]

	// mu guards the fields below, and the data of the workload.
	mu sync.Mutex
	// changed is true while state is unpublished. notify is true if subscribers are called although the state may be the same.
	changed, notify bool
	// publishing is true while a goroutine publishes. deleted is true once the entry was deleted from the table.
	publishing, deleted bool
}

func (e *Entry) entry() *Entry { return e }

// Lock locks the Revision.
func (e *Entry) Lock() { e.mu.Lock() }

// Notify makes the next Unlock call the subscribers, even if the State is the same. The lock is held.
func (e *Entry) Notify() { e.notify = true }

// Unlock publishes the State if it has changed, and unlocks the Revision. One goroutine at a time publishes the States of a Revision,
// without the lock, so that subscribers may call the table.
func (e *Entry) Unlock() {
	defer e.mu.Unlock()
	e.observe()
	if e.publishing {
		return
	}
	e.publishing = true
	for e.changed || e.notify {
		e.changed, e.notify = false, false
		var state workload.State
		if s := e.state.Load(); s != nil {
			state = *s
		}
		e.mu.Unlock()
		e.table.publish(e.Key, state)
		e.mu.Lock()
	}
	e.publishing = false
	if !e.deleted && e.revision.Unused() {
		e.deleted = true
		e.revision.Deleted()
		e.table.remove(e.Key)
	}
}

func (e *Entry) observe() {
	before, state := e.state.Load(), e.revision.Observe()
	switch {
	case state == nil && before == nil:
		e.notify = false
	case state == nil || before == nil || !reflect.DeepEqual(before, state):
		e.state.Store(state)
		e.changed = true
	}
}
