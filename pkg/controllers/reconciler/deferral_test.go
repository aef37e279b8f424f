package reconciler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/leader"
)

// written is a StatusClient that keeps what was written last, and when.
type written struct {
	object servingv1.Service
	at     []time.Duration
	start  time.Time
}

func (w *written) UpdateStatus(_ context.Context, service *servingv1.Service, _ metav1.UpdateOptions) (*servingv1.Service, error) {
	w.object = *service
	w.at = append(w.at, time.Since(w.start))
	return service, nil
}

// A status is written at once where it tells something new, later where it is a reason why nothing is known yet, and not at
// all where that is over by then.
func TestPostpone(t *testing.T) {
	unknown := func(reason string) duckv1.Condition { return Unknown(duckv1.ConditionReady, reason, "") }
	type step struct {
		after      time.Duration
		ready      duckv1.Condition
		generation int64
	}
	const soon = 10 * time.Millisecond
	for name, test := range map[string]struct {
		steps []step
		want  []time.Duration
	}{
		"on the way to ready": {
			[]step{{0, unknown("A"), 1}, {soon, unknown("B"), 1}, {soon, unknown("C"), 1}, {soon, True(duckv1.ConditionReady), 1}},
			[]time.Duration{3 * soon},
		},
		"a reason that stays": {[]step{{0, unknown("A"), 1}, {soon, unknown("B"), 1}}, []time.Duration{postponement}},
		"reasons that go on changing": {
			[]step{{0, unknown("A"), 1}, {soon, unknown("B"), 1}, {postponement, unknown("C"), 1}, {soon, unknown("D"), 1}},
			[]time.Duration{postponement, soon + 2*postponement},
		},
		"failure": {[]step{{0, unknown("A"), 1}, {soon, False(duckv1.ConditionReady, "F", ""), 1}}, []time.Duration{soon}},
		"another generation": {
			[]step{{0, unknown("A"), 1}, {time.Second, unknown("A"), 2}, {soon, True(duckv1.ConditionReady), 2}, {soon, unknown("B"), 3}},
			[]time.Duration{postponement, time.Second, time.Second + soon, time.Second + 2*soon},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &written{}
				var desired duckv1.Status
				c := New("test", reconcile(func(ctx context.Context, _ types.NamespacedName) error {
					observed := store.object
					current := observed
					current.Status.Status = desired
					return UpdateStatus(ctx, store, &observed, &current)
				}))
				c.Postpone()
				run(t, c, 1, func() {
					store.start = time.Now()
					for _, s := range test.steps {
						<-time.After(s.after)
						synctest.Wait()
						desired = duckv1.Status{ObservedGeneration: s.generation, Conditions: duckv1.Conditions{s.ready}}
						c.Enqueue(named("a"))
						synctest.Wait()
					}
					<-time.After(time.Minute)
				})
				if len(store.at) != len(test.want) {
					t.Fatalf("written after %v, want %v", store.at, test.want)
				}
				for i := range test.want {
					if store.at[i] != test.want[i] {
						t.Errorf("write %d came after %v, want %v", i, store.at[i], test.want[i])
					}
				}
				if got := store.object.Status.Status.Conditions[0].Reason; got != test.steps[len(test.steps)-1].ready.Reason {
					t.Errorf("the last reason is %q", got)
				}
			})
		})
	}
}

// Where many objects of a namespace are on their way their reasons wait until few are left, or for long. Those of another
// namespace do not wait for them.
func TestPostponeMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPostponed()
		key := func(i int) types.NamespacedName { return named(fmt.Sprint(i)) }
		mayWait := func(key types.NamespacedName) bool { return p.allow(t.Context(), key).Value(postponing{}) != nil }
		for i := range few + 2 {
			want := postponement
			if i >= few {
				want = maxPostponement
			}
			if got, _ := p.note(key(i), errPostponed); got != want {
				t.Errorf("with %d others a reason is written after %v, want %v", i, got, want)
			}
		}
		elsewhere := types.NamespacedName{Namespace: "elsewhere", Name: "a"}
		if got, _ := p.note(elsewhere, errPostponed); got != postponement {
			t.Errorf("in another namespace a reason is written after %v, want %v", got, postponement)
		}
		<-time.After(postponement)
		if !mayWait(key(0)) || mayWait(elsewhere) {
			t.Error("after a while the reasons of the one namespace may not wait, or those of the other may")
		}
		if got, _ := p.note(key(0), errPostponed); got != maxPostponement-postponement {
			t.Errorf("one that came first is written after %v, want %v", got, maxPostponement-postponement)
		}
		if _, due := p.note(key(0), nil); due != nil {
			t.Errorf("with more than few left %v are due", due)
		}
		if _, due := p.note(key(1), nil); len(due) != few || slices.Contains(due, key(0)) || slices.Contains(due, key(1)) {
			t.Errorf("when few are left %v are due", due)
		}
		if mayWait(key(2)) {
			t.Error("when few are left a reason may still wait")
		}
		for i := range few + 2 {
			p.note(key(i), nil)
		}
		p.note(elsewhere, nil)
		if len(p.since) > 0 {
			t.Errorf("%v are kept in mind", p.since)
		}
	})
}

// Long as it may be, nothing waits for ever.
func TestPostponeAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPostponed()
		for i := range 2 * few {
			p.note(named(fmt.Sprint(i)), errPostponed)
		}
		<-time.After(maxPostponement)
		if p.allow(t.Context(), named("0")).Value(postponing{}) != nil {
			t.Errorf("after %v a reason may still wait", maxPostponement)
		}
	})
}

// A replica that leaves writing to others has nothing to postpone, nor has what is to be written at once.
func TestPostponeNothing(t *testing.T) {
	p := newPostponed()
	for name, ctx := range map[string]context.Context{
		"following": p.allow(leader.Following(t.Context()), named("b")),
		"at once":   AtOnce(p.allow(t.Context(), named("b"))),
	} {
		if ctx.Value(postponing{}) != nil {
			t.Errorf("%s: it may be postponed", name)
		}
	}
}

// What failed beside a status that is postponed is tried again soon.
func TestPostponeFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		c := New("test", reconcile(func(context.Context, types.NamespacedName) error {
			if tries++; tries == 1 {
				return errors.Join(errPostponed, errors.New("something else"))
			}
			return errPostponed
		}))
		c.Postpone()
		run(t, c, 1, func() {
			c.Enqueue(named("a"))
			<-time.After(postponement / 2)
			synctest.Wait()
			if tries != 2 {
				t.Errorf("it was tried %d times, want twice", tries)
			}
		})
	})
}
