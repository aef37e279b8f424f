package eventrun

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var (
	from = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	to   = from.Add(time.Hour)
)

// newReplayFixture returns the fixture of a replay from the Broker orders to a target. The Trigger bill of the Broker is subscribed.
func newReplayFixture(t *testing.T, kind, name string, uid types.UID) *fixture {
	t.Helper()
	trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "bill", UID: "uid-bill"}, Spec: eventingv1.TriggerSpec{Broker: "orders"}}
	trigger.Status.Conditions = duckv1.Conditions{{Type: eventingv1.TriggerConditionSubscriptionReady, Status: corev1.ConditionTrue}}
	return newFixtureOf(t, trigger,
		&eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "uid-orders"}},
		&eventingv1alpha1.EventRun{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: key.Namespace, Name: key.Name, UID: "uid-run", Generation: 1,
				OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: name, UID: uid, Controller: ptr.To(true)}},
			},
			Spec: eventingv1alpha1.EventRunSpec{
				Target: eventingv1alpha1.EventRunTarget{Kind: kind, Name: name},
				Replay: &eventingv1alpha1.EventRunReplay{
					Broker: "orders", From: ptr.To(metav1.NewMicroTime(from)), To: metav1.NewMicroTime(to), Rate: ptr.To[int32](7),
					Selector: &eventingv1alpha1.EventSelector{Type: "order"},
				},
			},
		})
}

// TestReplay starts a replay with the stored progress, and stores each progress.
func TestReplay(t *testing.T) {
	for _, target := range []struct {
		kind, name string
		uid        types.UID
		consumer   eventing.Key
	}{
		{"Trigger", "bill", "uid-bill", eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: "bill"}},
		{"Broker", "orders", "uid-orders", eventing.Key{}},
	} {
		t.Run(target.kind, func(t *testing.T) {
			f := newReplayFixture(t, target.kind, target.name, target.uid)
			progress := eventing.ReplayProgress{Position: "a-1-2", Queued: 9, Failed: 1, LastEvent: from.Add(time.Minute)}
			f.runs.progress = eventing.RunProgress{Replay: progress, Waiting: "the event log is full"}
			run := f.reconcile()
			if s := run.Status; s.StartTime == nil || s.Phase != eventingv1alpha1.EventRunRunning || s.Total != nil || s.Position != "a-1-2" || s.Queued != 9 || s.Failed != 1 ||
				!s.LastEventTime.Time.Equal(progress.LastEvent) {
				t.Fatalf("status %+v", s)
			}
			if status, reason := succeeded(run); status != corev1.ConditionUnknown || reason != ReasonWaiting {
				t.Errorf("succeeded: %s %s", status, reason)
			}
			f.reconcile()
			want := eventing.Run{
				ID: "uid-run", Consumer: target.consumer, Filters: []eventing.Filter{{Exact: map[string]string{"type": "order"}}}, Rate: 7,
				Replay: &eventing.Replay{
					Broker: eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}, BrokerUID: "uid-orders", From: from, To: to, Stored: progress,
				},
			}
			if target.kind == "Trigger" {
				want.ConsumerUID = target.uid
			}
			if diff := cmp.Diff(map[types.NamespacedName]eventing.Run{key: want}, maps.Clone(f.runs.started)); diff != "" {
				t.Errorf("started %s", diff)
			}
		})
	}
}

// TestReplayEnds stores how a replay ended.
func TestReplayEnds(t *testing.T) {
	for name, test := range map[string]struct {
		progress eventing.RunProgress
		phase    eventingv1alpha1.EventRunPhase
		reason   string
	}{
		"succeeded": {eventing.RunProgress{Replay: eventing.ReplayProgress{Queued: 1}}, eventingv1alpha1.EventRunSucceeded, ""},
		"evicted":   {eventing.RunProgress{Replay: eventing.ReplayProgress{Evicted: true}}, eventingv1alpha1.EventRunSucceeded, ReasonEventsEvicted},
		"failed":    {eventing.RunProgress{Replay: eventing.ReplayProgress{Failed: 1}}, eventingv1alpha1.EventRunFailed, ReasonEventsFailed},
		"replaced":  {eventing.RunProgress{Err: eventing.ErrArchiveReplaced}, eventingv1alpha1.EventRunFailed, ReasonArchiveReplaced},
		"position":  {eventing.RunProgress{Err: fmt.Errorf("%w: %w", eventing.ErrPosition, errors.New("x"))}, eventingv1alpha1.EventRunFailed, ReasonPositionInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			f := newReplayFixture(t, "Broker", "orders", "uid-orders")
			f.runs.progress = test.progress
			f.runs.progress.Ended = true
			run := f.reconcile()
			if _, reason := succeeded(run); run.Status.Phase != test.phase || reason != test.reason || run.Status.CompletionTime == nil || run.Status.Evicted != test.progress.Replay.Evicted {
				t.Errorf("status %+v", run.Status)
			}
		})
	}
	f := newReplayFixture(t, "Broker", "orders", "uid-orders")
	f.Archives = false
	if run := f.reconcile(); run.Status.Phase != eventingv1alpha1.EventRunFailed || len(f.runs.started) > 0 {
		t.Errorf("without archives: %+v", run.Status)
	}
}

// TestReplayWaits does not start a replay to all Triggers before each that is subscribed is served, nor one whose Broker is another one of the same
// name.
func TestReplayWaits(t *testing.T) {
	f := newReplayFixture(t, "Broker", "orders", "uid-orders")
	f.runs.unserved = true
	run := f.reconcile()
	if _, reason := succeeded(run); reason != ReasonWaiting || len(f.runs.started) > 0 {
		t.Errorf("while a Trigger is not served: %s, started %v", reason, f.runs.started)
	}
	f.runs.unserved = false
	if f.reconcile(); len(f.runs.started) != 1 {
		t.Error("not started when all Triggers are served")
	}
	f = newReplayFixture(t, "Trigger", "bill", "uid-bill")
	f.runs.unserved = true
	if f.reconcile(); len(f.runs.started) != 1 {
		t.Error("a replay to a Trigger is not started: its events can wait")
	}
	f = newReplayFixture(t, "Broker", "orders", "uid-earlier")
	if f.reconcile(); len(f.runs.started) != 0 {
		t.Error("started a replay of an earlier Broker")
	}
}
