package eventrun

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
)

// brokers is a store of Brokers of every name but "none", with an archive unless their name says otherwise. Their UID is their name.
type brokers struct{}

func (brokers) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	broker := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
	archive := duckv1.Condition{Type: eventingv1.BrokerConditionArchiveReady, Status: corev1.ConditionTrue}
	switch name {
	case "none":
		return nil, apierrors.NewNotFound(eventingv1.Resource("brokers"), name)
	case "leaving":
		broker.DeletionTimestamp = ptr.To(metav1.Now())
	case "disabled":
		archive.Status, archive.Reason, archive.Message = corev1.ConditionFalse, eventingv1.BrokerReasonArchiveDisabled, "The operator disabled archives."
	case "invalid":
		archive.Status, archive.Reason = corev1.ConditionFalse, "ConfigInvalid"
	}
	if name != "plain" {
		broker.Status.Conditions = duckv1.Conditions{archive}
	}
	return broker, nil
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

func newReplayTest() (*memory, *replayREST) {
	store := &memory{runs: map[string]*eventingv1alpha1.EventRun{}}
	return store, NewReplay(brokers{}, triggers{}, NewRuns(store), clocktesting.NewFakePassiveClock(now)).(*replayREST)
}

func replay(t *testing.T, r *replayREST, name string, asked *eventingv1alpha1.Replay) (*eventingv1alpha1.EventRun, error) {
	t.Helper()
	obj, err := r.Create(t.Context(), name, asked, nil, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*eventingv1alpha1.EventRun), nil
}

func at(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(d))) }

// TestReplay creates the EventRun of a Broker or a Trigger, which owns it. Its end is fixed. A target has one EventRun.
func TestReplay(t *testing.T) {
	store, r := newReplayTest()
	run, err := replay(t, r, "orders", &eventingv1alpha1.Replay{From: at(-time.Hour), Selector: &eventingv1alpha1.EventSelector{Type: "order"}, Rate: ptr.To[int32](5)})
	if err != nil {
		t.Fatal(err)
	}
	spec := run.Spec.Replay
	if run.Name != "broker-orders" || run.Namespace != "shop" || !metav1.IsControlledBy(run, &metav1.ObjectMeta{UID: "orders"}) || run.Spec.Target.Kind != "Broker" || run.Spec.Target.Name != "orders" ||
		spec.Broker != "orders" || *spec.Rate != 5 || spec.Selector.Type != "order" || !spec.From.Time.Equal(now.Add(-time.Hour)) {
		t.Errorf("created %+v", run)
	}
	if !spec.To.After(now) || spec.To.Sub(now) > time.Microsecond {
		t.Errorf("to is %s, want %s in microseconds, rounded up", spec.To, now)
	}
	if errs := eventingv1alpha1.ValidateEventRun(run); len(errs) > 0 {
		t.Error(errs)
	}
	if _, err := replay(t, r, "orders", &eventingv1alpha1.Replay{}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "EventRun 'broker-orders' of the Broker is in progress") {
		t.Errorf("a second one: %v", err)
	}
	to := at(-time.Minute)
	run, err = replay(t, r, "orders", &eventingv1alpha1.Replay{To: to, Trigger: "bill"})
	if err != nil {
		t.Fatal(err)
	}
	if run.Name != "trigger-bill" || !metav1.IsControlledBy(run, &metav1.ObjectMeta{UID: "bill"}) || run.Spec.Target.Kind != "Trigger" || run.Spec.Replay.Broker != "orders" || !run.Spec.Replay.To.Time.Equal(to.Time) {
		t.Errorf("created %+v", run)
	}
	// A replay to a Trigger and a redrive exclude each other.
	if _, err := redrive(t, newTriggerRedrive(r.runs), "bill", &eventingv1alpha1.Redrive{}); !apierrors.IsConflict(err) {
		t.Errorf("a redrive meanwhile: %v", err)
	}
	store.runs["broker-orders"].Status.Phase = eventingv1alpha1.EventRunSucceeded
	run, err = replay(t, r, "orders", &eventingv1alpha1.Replay{To: at(time.Hour)})
	if err != nil || run.Spec.Replay.To.Sub(now) > time.Microsecond {
		t.Errorf("in place of an ended one, to a later time: %v, %v", run, err)
	}
	for i := range MaxInProgress - 2 {
		if _, err := replay(t, r, "more"+strings.Repeat("x", i), &eventingv1alpha1.Replay{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := replay(t, r, "last", &eventingv1alpha1.Replay{}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("beyond the limit: %v", err)
	}
}

// TestBadReplays rejects requests with errors that name the field, and Brokers without an archive. They create nothing.
func TestBadReplays(t *testing.T) {
	for name, test := range map[string]struct {
		broker string
		asked  eventingv1alpha1.Replay
		code   int32
		want   string
	}{
		"no Broker":          {"none", eventingv1alpha1.Replay{}, http.StatusNotFound, `"none" not found`},
		"leaving Broker":     {"leaving", eventingv1alpha1.Replay{}, http.StatusConflict, "the Broker is being deleted"},
		"no archive":         {"plain", eventingv1alpha1.Replay{}, http.StatusConflict, "set the key 'archive-retention'"},
		"disabled archive":   {"disabled", eventingv1alpha1.Replay{}, http.StatusConflict, "The operator disabled archives."},
		"other name":         {"orders", eventingv1alpha1.Replay{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, http.StatusBadRequest, "metadata.name must be empty or 'orders'"},
		"rate":               {"orders", eventingv1alpha1.Replay{Rate: ptr.To[int32](0)}, http.StatusUnprocessableEntity, "rate: Invalid value"},
		"from after to":      {"orders", eventingv1alpha1.Replay{From: at(-time.Hour), To: at(-2 * time.Hour)}, http.StatusUnprocessableEntity, "from: Invalid value: \"2026-01-02T02:04:05.000000006Z\": must be before `to`"},
		"from in the future": {"orders", eventingv1alpha1.Replay{From: at(time.Hour)}, http.StatusUnprocessableEntity, "from: Invalid value: \"2026-01-02T04:04:05.000000006Z\": must be in the past"},
		"empty selector":     {"orders", eventingv1alpha1.Replay{Selector: &eventingv1alpha1.EventSelector{}}, http.StatusUnprocessableEntity, "selector: Required value"},
		"filter":             {"orders", eventingv1alpha1.Replay{Selector: &eventingv1alpha1.EventSelector{Filters: []eventingv1.SubscriptionsAPIFilter{{CESQL: "("}}}}, http.StatusUnprocessableEntity, "selector.filters[0].cesql"},
		"no Trigger":         {"orders", eventingv1alpha1.Replay{Trigger: "none"}, http.StatusUnprocessableEntity, `trigger: Not found: "none"`},
		"leaving Trigger":    {"orders", eventingv1alpha1.Replay{Trigger: "leaving"}, http.StatusUnprocessableEntity, `trigger: Invalid value: "leaving"`},
		"another Broker":     {"invoices", eventingv1alpha1.Replay{Trigger: "bill"}, http.StatusUnprocessableEntity, `trigger: Invalid value: "bill": must be a Trigger of Broker 'invoices'`},
	} {
		store, r := newReplayTest()
		_, err := replay(t, r, test.broker, &test.asked)
		status, ok := err.(apierrors.APIStatus)
		if !ok || status.Status().Code != test.code || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
		if len(store.runs) > 0 {
			t.Errorf("%s: an EventRun was created", name)
		}
	}
	// The archive continues while its configuration is invalid.
	_, r := newReplayTest()
	if _, err := replay(t, r, "invalid", &eventingv1alpha1.Replay{}); err != nil {
		t.Errorf("with an invalid configuration: %v", err)
	}
}
