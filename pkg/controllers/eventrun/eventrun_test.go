package eventrun

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

var key = types.NamespacedName{Namespace: "shop", Name: "trigger-bill"}

// dataPlane has one run at most.
type dataPlane struct {
	last     string
	unserved bool
	started  map[types.NamespacedName]eventing.Run
	progress eventing.RunProgress
}

func (d *dataPlane) Last(context.Context, string) (string, error) { return d.last, nil }

func (d *dataPlane) Start(name types.NamespacedName, run eventing.Run) eventing.RunProgress {
	d.started[name] = run
	return d.progress
}

func (d *dataPlane) Serves(eventing.Key, types.UID) bool { return !d.unserved }

func (d *dataPlane) Stop(name types.NamespacedName) { delete(d.started, name) }

// fixture is a Reconciler of one EventRun, with informers that start for each call.
type fixture struct {
	*testing.T
	client *fake.Clientset
	runs   *dataPlane
	clock  *clocktesting.FakePassiveClock
	*Reconciler
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bill", UID: "uid-bill"}}
	run := &eventingv1alpha1.EventRun{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name, UID: "uid-run", Generation: 1,
			OwnerReferences: []metav1.OwnerReference{{Kind: "Trigger", Name: "bill", UID: trigger.UID, Controller: ptr.To(true)}},
		},
		Spec: eventingv1alpha1.EventRunSpec{
			Target: eventingv1alpha1.EventRunTarget{Kind: "Trigger", Name: "bill"},
			Redrive: &eventingv1alpha1.EventRunRedrive{Rate: ptr.To[int32](7), Selector: &eventingv1alpha1.EventSelector{
				Type: "order", Filters: []eventingv1.SubscriptionsAPIFilter{{CESQL: "TRUE"}},
			}},
		},
	}
	return newFixtureOf(t, trigger, run)
}

// newFixtureOf returns the fixture of some objects.
func newFixtureOf(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	f := &fixture{T: t, client: fake.NewClientset(objects...), runs: &dataPlane{last: "abc-9", started: map[types.NamespacedName]eventing.Run{}}, clock: clocktesting.NewFakePassiveClock(time.Now())}
	f.Reconciler = &Reconciler{Client: f.client.EventingV1alpha1(), Runs: f.runs, DeadLetters: true, Archives: true, Clock: f.clock}
	return f
}

// reconcile reconciles the EventRun as the owner of the Broker, and returns the stored one.
func (f *fixture) reconcile() *eventingv1alpha1.EventRun {
	f.Helper()
	f.reconcileAs(true)
	return f.get()
}

// reconcileAs reconciles the EventRun as a replica that owns the Broker or not.
func (f *fixture) reconcileAs(owns bool) {
	f.Helper()
	ctx, cancel := context.WithCancel(f.Context())
	informers := externalversions.NewSharedInformerFactory(f.client, 0)
	if _, err := f.Controller(informers, destination.New(ctx, destination.Options{Informers: informers, ClusterDomain: "cluster.local"})); err != nil {
		f.Fatal(err)
	}
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	if _, err := f.Reconcile(ctx, reconciler.NewRequest(key, owns)); err != nil {
		f.Fatal(err)
	}
	cancel()
	informers.Shutdown()
}

func (f *fixture) get() *eventingv1alpha1.EventRun {
	f.Helper()
	run, err := f.client.EventingV1alpha1().EventRuns(key.Namespace).Get(f.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		f.Fatal(err)
	}
	return run
}

func succeeded(run *eventingv1alpha1.EventRun) (status corev1.ConditionStatus, reason string) {
	c := run.Status.Conditions.Get(eventingv1alpha1.EventRunConditionSucceeded)
	if c == nil {
		return "", ""
	}
	return c.Status, c.Reason
}

// TestProgress stores the end of a run before it starts, then its progress, and stops it when it has ended.
func TestProgress(t *testing.T) {
	f := newFixture(t)
	run := f.reconcile()
	if len(f.runs.started) > 0 || run.Status.Last != "abc-9" || run.Status.StartTime == nil || run.Status.Phase != eventingv1alpha1.EventRunRunning {
		t.Fatalf("at first: %+v, started %v", run.Status, f.runs.started)
	}
	f.runs.last = "abc-12"
	run = f.reconcile()
	want := map[types.NamespacedName]eventing.Run{key: {
		ID: "uid-run", Consumer: eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: "bill"}, ConsumerUID: "uid-bill", Last: "abc-9",
		Filters: []eventing.Filter{{CESQL: "TRUE"}, {Exact: map[string]string{"type": "order"}}}, Rate: 7,
	}}
	if diff := cmp.Diff(want, maps.Clone(f.runs.started)); diff != "" || run.Status.Total != nil {
		t.Errorf("total %v, started %s", run.Status.Total, diff)
	}
	f.runs.progress = eventing.RunProgress{Counted: true, Remaining: 9}
	run = f.reconcile()
	if f.runs.started[key].Begin || *run.Status.Total != 9 {
		t.Errorf("began before the total was stored: %+v", run.Status)
	}
	f.runs.progress = eventing.RunProgress{Counted: true, Remaining: 9, Queued: 2, Waiting: "the event log is full"}
	run = f.reconcile()
	if status, reason := succeeded(run); *run.Status.Total != 9 || run.Status.Queued != 2 || status != corev1.ConditionUnknown || reason != ReasonWaiting {
		t.Errorf("while waiting: %+v", run.Status)
	}
	if !f.runs.started[key].Begin {
		t.Error("the run did not begin")
	}
	// After a restart, 4 are left: 5 had been queued.
	f.runs.progress = eventing.RunProgress{Counted: true, Remaining: 4, Queued: 1}
	run = f.reconcile()
	if status, reason := succeeded(run); *run.Status.Total != 9 || run.Status.Queued != 6 || status != corev1.ConditionUnknown || reason != ReasonRunning {
		t.Errorf("after a restart: %+v", run.Status)
	}
	f.runs.progress = eventing.RunProgress{Counted: true, Remaining: 4, Queued: 4, Ended: true}
	f.clock.SetTime(f.clock.Now().Add(time.Minute))
	run = f.reconcile()
	if status, _ := succeeded(run); run.Status.Queued != 9 || status != corev1.ConditionTrue || !run.Ended() || run.Status.CompletionTime.Sub(run.Status.StartTime.Time) != time.Minute {
		t.Errorf("at the end: %+v", run.Status)
	}
	if f.reconcile(); len(f.runs.started) > 0 {
		t.Errorf("after the end: %v", f.runs.started)
	}
}

// TestEnds fails with events that cannot be delivered, and without a dead letter store. Without dead letters it succeeds at once.
func TestEnds(t *testing.T) {
	f := newFixture(t)
	f.reconcile()
	f.runs.progress = eventing.RunProgress{Counted: true, Remaining: 3, Queued: 2, Failed: 1, Ended: true}
	run := f.reconcile()
	if status, reason := succeeded(run); run.Status.Phase != eventingv1alpha1.EventRunFailed || run.Status.Failed != 1 || status != corev1.ConditionFalse || reason != ReasonEventsFailed {
		t.Errorf("with a failed event: %+v", run.Status)
	}
	f = newFixture(t)
	f.runs.last = ""
	if run := f.reconcile(); run.Status.Phase != eventingv1alpha1.EventRunSucceeded || *run.Status.Total != 0 {
		t.Errorf("without dead letters: %+v", run.Status)
	}
	f = newFixture(t)
	f.Runs, f.DeadLetters, f.Archives = nil, false, false
	run = f.reconcile()
	if _, reason := succeeded(run); run.Status.Phase != eventingv1alpha1.EventRunFailed || reason != ReasonStoreDisabled {
		t.Errorf("without a store: %+v", run.Status)
	}
}

// TestStops stops a run that is deleted, whose Trigger is another one of the same name, or whose Broker another replica owns now.
func TestStops(t *testing.T) {
	for name, change := range map[string]func(f *fixture) (owns bool){
		"other owner": func(*fixture) bool { return false },
		"deleted": func(f *fixture) bool {
			if err := f.client.EventingV1alpha1().EventRuns(key.Namespace).Delete(f.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
				f.Fatal(err)
			}
			return true
		},
		"other Trigger": func(f *fixture) bool {
			trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bill", UID: "uid-later"}}
			if _, err := f.client.EventingV1().Triggers("shop").Update(f.Context(), trigger, metav1.UpdateOptions{}); err != nil {
				f.Fatal(err)
			}
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.reconcile()
			f.reconcile()
			if len(f.runs.started) != 1 {
				t.Fatal("not started")
			}
			f.reconcileAs(change(f))
			if len(f.runs.started) != 0 {
				t.Errorf("still started: %v", f.runs.started)
			}
		})
	}
}

// TestDestination passes the address of the destination on, and stops the run while it has none.
func TestDestination(t *testing.T) {
	f := newFixture(t)
	run := f.get()
	run.Spec.Redrive.Destination = &duckv1.Destination{URI: "http://other.example.com/", CACerts: ptr.To("certificates")}
	run.Status.StartTime, run.Status.Total, run.Status.Last = ptr.To(metav1.Now()), ptr.To[int64](3), "abc-9"
	f.update(run)
	f.reconcile()
	if got := f.runs.started[key].Destination; got == nil || *got != (eventing.Endpoint{URL: "http://other.example.com/", CACerts: "certificates"}) {
		t.Errorf("the destination is %+v", got)
	}
	run = f.get()
	run.Spec.Redrive.Destination = &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Namespace: "shop", Name: "none"}}
	f.update(run)
	run = f.reconcile()
	if c := run.Status.Conditions.Get(eventingv1alpha1.EventRunConditionSucceeded); c.Reason != ReasonWaiting || !strings.Contains(c.Message, `The destination has no address: eventing.knative.dev/v1 Broker "shop/none" does not exist`) {
		t.Errorf("without an address, the condition is %+v", c)
	}
	if len(f.runs.started) > 0 {
		t.Error("the run continues without an address")
	}
}

func (f *fixture) update(run *eventingv1alpha1.EventRun) {
	f.Helper()
	if _, err := f.client.EventingV1alpha1().EventRuns(key.Namespace).Update(f.Context(), run, metav1.UpdateOptions{}); err != nil {
		f.Fatal(err)
	}
}
