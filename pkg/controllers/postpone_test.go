package controllers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
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

// A status is written at once where it tells something new, later where it is another reason why nothing is known yet, and
// not at all where that is over by then.
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
			[]time.Duration{0, 3 * soon},
		},
		"a reason that stays": {[]step{{0, unknown("A"), 1}, {soon, unknown("B"), 1}}, []time.Duration{0, soon + postponement}},
		"reasons that go on changing": {
			[]step{{0, unknown("A"), 1}, {soon, unknown("B"), 1}, {400 * time.Millisecond, unknown("C"), 1}, {400 * time.Millisecond, unknown("D"), 1}},
			[]time.Duration{0, soon + postponement, soon + 800*time.Millisecond + postponement},
		},
		"failure":            {[]step{{0, unknown("A"), 1}, {soon, False(duckv1.ConditionReady, "F", ""), 1}}, []time.Duration{0, soon}},
		"another generation": {[]step{{0, unknown("A"), 1}, {soon, unknown("A"), 2}}, []time.Duration{0, soon}},
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
