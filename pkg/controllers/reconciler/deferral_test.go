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
)

// written is a StatusClient that records the last written object, and the times of all writes.
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

// A relevant change is written at once. A change of only the reason why Ready is Unknown is written later, or not at all if it is outdated by then.
func TestDeferUnknown(t *testing.T) {
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
		"becoming ready": {
			[]step{{0, unknown("A"), 1}, {soon, unknown("B"), 1}, {soon, unknown("C"), 1}, {soon, True(duckv1.ConditionReady), 1}},
			[]time.Duration{3 * soon},
		},
		"a reason that stays": {[]step{{0, unknown("A"), 1}, {soon, unknown("B"), 1}}, []time.Duration{deferral}},
		"reasons that keep changing": {
			[]step{{0, unknown("A"), 1}, {soon, unknown("B"), 1}, {deferral, unknown("C"), 1}, {soon, unknown("D"), 1}},
			[]time.Duration{deferral, soon + 2*deferral},
		},
		"failure": {[]step{{0, unknown("A"), 1}, {soon, False(duckv1.ConditionReady, "F", ""), 1}}, []time.Duration{soon}},
		"another generation": {
			[]step{{0, unknown("A"), 1}, {time.Second, unknown("A"), 2}, {soon, True(duckv1.ConditionReady), 2}, {soon, unknown("B"), 3}},
			[]time.Duration{deferral, time.Second, time.Second + soon, time.Second + 2*soon},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &written{}
				var desired duckv1.Status
				c := New("test", reconcile(func(ctx context.Context, request Request) error {
					observed := store.object
					current := observed
					current.Status.Status = desired
					_, err := request.Status.DeferUnknown(ctx, UpdateOf(store, &observed, &current))
					return err
				}))
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

// If many objects of a namespace have deferred updates, these wait until few are left, or until the limit. Updates in another
// namespace do not wait for them.
func TestDeferralsMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newDeferrals()
		key := func(i int) types.NamespacedName { return named(fmt.Sprint(i)) }
		mayWait := func(key types.NamespacedName) bool { return p.allow(key) }
		for i := range few + 2 {
			want := deferral
			if i >= few {
				want = maxDeferral
			}
			if got, _ := p.note(key(i), true); got != want {
				t.Errorf("with %d others a reason is written after %v, want %v", i, got, want)
			}
		}
		remote := types.NamespacedName{Namespace: "remote", Name: "a"}
		if got, _ := p.note(remote, true); got != deferral {
			t.Errorf("in another namespace a reason is written after %v, want %v", got, deferral)
		}
		<-time.After(deferral)
		if !mayWait(key(0)) || mayWait(remote) {
			t.Error("after some time, updates of the first namespace are not deferred, or updates of the second are")
		}
		if got, _ := p.note(key(0), true); got != maxDeferral-deferral {
			t.Errorf("the first one is written after %v, want %v", got, maxDeferral-deferral)
		}
		if _, due := p.note(key(0), false); due != nil {
			t.Errorf("with more than few left %v are due", due)
		}
		if _, due := p.note(key(1), false); len(due) != few || slices.Contains(due, key(0)) || slices.Contains(due, key(1)) {
			t.Errorf("when few are left %v are due", due)
		}
		if mayWait(key(2)) {
			t.Error("with few left, an update is still deferred")
		}
		for i := range few + 2 {
			p.note(key(i), false)
		}
		p.note(remote, false)
		if len(p.since) > 0 {
			t.Errorf("deferrals of %v remain", p.since)
		}
	})
}

// No update is deferred without a limit.
func TestDeferralsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newDeferrals()
		for i := range 2 * few {
			p.note(named(fmt.Sprint(i)), true)
		}
		<-time.After(maxDeferral)
		if p.allow(named("0")) {
			t.Errorf("after %v, an update is still deferred", maxDeferral)
		}
	})
}

// A replica that does not write defers nothing, Write never defers, and Defer defers any update.
func TestStatusWriter(t *testing.T) {
	unknown, ready := &servingv1.Service{}, &servingv1.Service{}
	unknown.Status.Conditions.Set(Unknown(duckv1.ConditionReady, "A", ""), now)
	ready.Status.Conditions.Set(True(duckv1.ConditionReady), now)
	type call = func(*StatusWriter, context.Context, StatusUpdate) (bool, error)
	for name, test := range map[string]struct {
		writer         StatusWriter
		call           call
		current        *servingv1.Service
		deferred, want bool
	}{
		"following":              {StatusWriter{deferrable: true}, (*StatusWriter).DeferUnknown, unknown, false, false},
		"write":                  {StatusWriter{writes: true, deferrable: true}, (*StatusWriter).Write, unknown, false, true},
		"defer":                  {StatusWriter{writes: true, deferrable: true}, (*StatusWriter).Defer, ready, true, false},
		"defer too late":         {StatusWriter{writes: true}, (*StatusWriter).Defer, ready, false, true},
		"defer unknown":          {StatusWriter{writes: true, deferrable: true}, (*StatusWriter).DeferUnknown, unknown, true, false},
		"defer unknown if ready": {StatusWriter{writes: true, deferrable: true}, (*StatusWriter).DeferUnknown, ready, false, true},
		"defer no change":        {StatusWriter{writes: true, deferrable: true}, (*StatusWriter).Defer, &servingv1.Service{}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			store := &written{start: time.Now()}
			test.writer.own = newOwnWrites()
			got, err := test.call(&test.writer, t.Context(), UpdateOf(store, &servingv1.Service{}, test.current))
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want || len(store.at) > 0 != test.want || test.writer.deferred != test.deferred {
				t.Errorf("returned %v, %d writes, deferred %v", got, len(store.at), test.writer.deferred)
			}
		})
	}
}

// An error in addition to a deferred status update is retried soon.
func TestDeferralWithError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		c := New("test", reconcile(func(ctx context.Context, request Request) error {
			current := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "changed"}}
			if _, err := request.Status.Defer(ctx, UpdateOf(&written{}, &servingv1.Service{}, current)); err != nil {
				return err
			}
			if tries++; tries == 1 {
				return errors.New("something else")
			}
			return nil
		}))
		run(t, c, 1, func() {
			c.Enqueue(named("a"))
			<-time.After(deferral / 2)
			synctest.Wait()
			if tries != 2 {
				t.Errorf("it was tried %d times, want twice", tries)
			}
		})
	})
}
