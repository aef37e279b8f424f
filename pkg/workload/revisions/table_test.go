package revisions

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

var key = types.NamespacedName{Namespace: "shop", Name: "cart-00001"}

// fake is a Revision with a number of ready backends; -1 means no State.
type fake struct {
	*Entry
	ready   int32
	unused  bool
	deleted int
}

func (f *fake) Observe() *workload.State {
	if f.ready < 0 {
		return nil
	}
	return &workload.State{UID: "uid", Ready: f.ready}
}

func (f *fake) Unused() bool { return f.unused }

func (f *fake) Deleted() { f.deleted++ }

func newTable() *Table[*fake] {
	return New(func(e *Entry) *fake { return &fake{Entry: e, ready: -1} })
}

// TestUnlock covers the calls of subscribers and their States.
func TestUnlock(t *testing.T) {
	table := newTable()
	var got []int32
	table.Subscribe(func(k types.NamespacedName, state workload.State) {
		if k != key {
			t.Errorf("called for %v", k)
		}
		got = append(got, state.Ready)
	})
	r := table.LockOrCreate(key)
	for _, step := range []struct {
		name   string
		ready  int32
		notify bool
		want   []int32
	}{
		{"nothing to report", -1, true, nil},
		{"first State", 1, false, []int32{1}},
		{"same State", 1, false, nil},
		{"same State with Notify", 1, true, []int32{1}},
		{"other State with Notify", 2, true, []int32{2}},
		{"State removed", -1, false, []int32{0}},
	} {
		got = nil
		r.ready = step.ready
		if step.notify {
			r.Notify()
		}
		r.Unlock()
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
		if _, ok := table.State(key); ok != (step.ready >= 0) {
			t.Errorf("%s: State reported %v", step.name, ok)
		}
		r.Lock()
	}
	r.Unlock()
}

// TestPublishInOrder checks that a change during a subscriber's call is published after it returns, also if the State is
// gone and another caller unlocks in between.
func TestPublishInOrder(t *testing.T) {
	table := newTable()
	r := table.LockOrCreate(key)
	var got []workload.State
	table.Subscribe(func(_ types.NamespacedName, state workload.State) {
		got = append(got, state)
		if len(got) > 1 {
			return
		}
		r, _ := table.Lock(key)
		r.ready = -1
		r.Unlock()
		r, _ = table.Lock(key)
		r.Unlock()
		if len(got) != 1 {
			t.Errorf("called %d times before the first call returned", len(got))
		}
	})
	r.ready = 1
	r.Unlock()
	if diff := cmp.Diff([]workload.State{{UID: "uid", Ready: 1}, {}}, got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
}

// TestDelete checks that an unused Revision is deleted once, and that the table creates another one then.
func TestDelete(t *testing.T) {
	table := newTable()
	first := table.LockOrCreate(key)
	first.Unlock()
	if len(table.All()) != 1 {
		t.Fatalf("the table has %v", table.All())
	}
	r, ok := table.Lock(key)
	if !ok || r != first {
		t.Fatalf("Lock returned %v, %v", r, ok)
	}
	r.unused = true
	r.Unlock()
	if _, ok := table.Lock(key); ok || first.deleted != 1 || len(table.All()) != 0 {
		t.Errorf("found %v, deleted %d times, the table has %v", ok, first.deleted, table.All())
	}
	second := table.LockOrCreate(key)
	defer second.Unlock()
	if second == first {
		t.Error("the deleted Revision was returned")
	}
}

// TestConcurrentUse creates, changes and deletes a Revision from several goroutines. No change is lost.
func TestConcurrentUse(t *testing.T) {
	table := newTable()
	var last workload.State
	table.Subscribe(func(_ types.NamespacedName, state workload.State) { last = state })
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				r := table.LockOrCreate(key)
				r.ready++
				r.Unlock()
			}
		})
	}
	all.Wait()
	if last.Ready != 399 {
		t.Errorf("the last published State has %d ready backends, want 399", last.Ready)
	}
}
