package eventrun

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

// triggers is a store of Triggers of every name but "none". Their UID is their name.
type triggers struct{}

func (triggers) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}, Spec: eventingv1.TriggerSpec{Broker: "orders"}}
	switch name {
	case "none":
		return nil, apierrors.NewNotFound(eventingv1.Resource("triggers"), name)
	case "leaving":
		trigger.DeletionTimestamp = ptr.To(metav1.Now())
	}
	return trigger, nil
}

// memory is a store of EventRuns. A run with a finalizer is not deleted at once.
type memory struct {
	runs    map[string]*eventingv1alpha1.EventRun
	created int
}

func (m *memory) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if run := m.runs[name]; run != nil {
		return run, nil
	}
	return nil, apierrors.NewNotFound(eventingv1alpha1.Resource("eventruns"), name)
}

func (m *memory) NewList() runtime.Object { return &eventingv1alpha1.EventRunList{} }

func (m *memory) List(context.Context, *metainternalversion.ListOptions) (runtime.Object, error) {
	list := &eventingv1alpha1.EventRunList{}
	for _, run := range m.runs {
		list.Items = append(list.Items, *run)
	}
	return list, nil
}

func (m *memory) ConvertToTable(context.Context, runtime.Object, runtime.Object) (*metav1.Table, error) {
	return nil, nil
}

func (m *memory) New() runtime.Object { return &eventingv1alpha1.EventRun{} }

func (m *memory) Create(_ context.Context, obj runtime.Object, _ rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	run := obj.(*eventingv1alpha1.EventRun)
	if m.runs[run.Name] != nil {
		return nil, apierrors.NewAlreadyExists(eventingv1alpha1.Resource("eventruns"), run.Name)
	}
	if len(options.DryRun) > 0 {
		return run, nil
	}
	m.created++
	run.UID = types.UID(fmt.Sprint("run-", m.created))
	m.runs[run.Name] = run
	return run, nil
}

func (m *memory) Delete(_ context.Context, name string, _ rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	run := m.runs[name]
	if run == nil || *options.Preconditions.UID != run.UID {
		return nil, false, apierrors.NewConflict(eventingv1alpha1.Resource("eventruns"), name, nil)
	}
	if len(run.Finalizers) > 0 {
		return run, false, nil
	}
	delete(m.runs, name)
	return run, true, nil
}

func newTest() (*memory, *redriveREST) {
	store := &memory{runs: map[string]*eventingv1alpha1.EventRun{}}
	return store, newTriggerRedrive(NewRuns(store))
}

// newTriggerRedrive returns the subresource redrive of Triggers.
func newTriggerRedrive(runs *Runs) *redriveREST {
	return NewRedrive(Targets{
		Kind: eventingv1.SchemeGroupVersion.WithKind("Trigger"), Resource: eventingv1.Resource("triggers"), Objects: triggers{},
	}, runs).(*redriveREST)
}

func redrive(t *testing.T, r *redriveREST, name string, asked *eventingv1alpha1.Redrive, dryRun ...string) (*eventingv1alpha1.EventRun, error) {
	t.Helper()
	obj, err := r.Create(t.Context(), name, asked, nil, &metav1.CreateOptions{DryRun: dryRun})
	if err != nil {
		return nil, err
	}
	return obj.(*eventingv1alpha1.EventRun), nil
}

// TestRedrive creates the EventRun of a Trigger, which owns it. One in progress is a conflict, one that has ended is replaced.
func TestRedrive(t *testing.T) {
	store, r := newTest()
	selector := &eventingv1alpha1.EventSelector{Type: "order"}
	run, err := redrive(t, r, "bill", &eventingv1alpha1.Redrive{Selector: selector, Rate: ptr.To[int32](5)})
	if err != nil {
		t.Fatal(err)
	}
	if run.Name != "trigger-bill" || run.Namespace != "shop" || !metav1.IsControlledBy(run, &metav1.ObjectMeta{UID: "bill"}) || run.Spec.Target.Kind != "Trigger" || run.Spec.Target.Name != "bill" ||
		*run.Spec.Redrive.Rate != 5 || run.Spec.Redrive.Selector.Type != "order" {
		t.Errorf("created %+v", run)
	}
	if errs := eventingv1alpha1.ValidateEventRun(run); len(errs) > 0 {
		t.Error(errs)
	}
	wantConflict := func(what, message string) {
		t.Helper()
		if _, err := redrive(t, r, "bill", &eventingv1alpha1.Redrive{}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", what, err)
		}
	}
	wantConflict("in progress", "EventRun 'trigger-bill' of the Trigger is in progress; wait until it ends, or delete it to cancel it")
	for _, phase := range []eventingv1alpha1.EventRunPhase{eventingv1alpha1.EventRunSucceeded, eventingv1alpha1.EventRunFailed} {
		store.runs["trigger-bill"].Status.Phase = phase
		before := store.runs["trigger-bill"].UID
		if _, err := redrive(t, r, "bill", &eventingv1alpha1.Redrive{}, metav1.DryRunAll); err != nil || store.runs["trigger-bill"].UID != before {
			t.Errorf("dry run after %s: %v", phase, err)
		}
		replaced, err := redrive(t, r, "bill", &eventingv1alpha1.Redrive{})
		if err != nil || replaced.UID == before || replaced.Ended() {
			t.Errorf("after %s: %v, %v", phase, replaced, err)
		}
	}
	store.runs["trigger-bill"].OwnerReferences[0].UID = "earlier"
	if _, err := redrive(t, r, "bill", &eventingv1alpha1.Redrive{}); err != nil {
		t.Errorf("with the run of an earlier Trigger: %v", err)
	}
	store.runs["trigger-bill"].Status.Phase, store.runs["trigger-bill"].Finalizers = eventingv1alpha1.EventRunSucceeded, []string{"example.com/x"}
	wantConflict("with finalizers", "is being deleted, and waits for its finalizers")
}

// TestQuota bounds the EventRuns in progress in a namespace. Ended ones do not count.
func TestQuota(t *testing.T) {
	store, r := newTest()
	for i := range MaxInProgress {
		if _, err := redrive(t, r, fmt.Sprint("t", i), &eventingv1alpha1.Redrive{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := redrive(t, r, "bill", &eventingv1alpha1.Redrive{})
	if !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), fmt.Sprintf("may have at most %d", MaxInProgress)) {
		t.Errorf("beyond the limit: %v", err)
	}
	if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds != retrySeconds {
		t.Errorf("retry after %d", seconds)
	}
	store.runs["trigger-t3"].Status.Phase = eventingv1alpha1.EventRunFailed
	if _, err := redrive(t, r, "bill", &eventingv1alpha1.Redrive{}); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// TestBadRedrives rejects requests with errors that name the field. They create nothing.
func TestBadRedrives(t *testing.T) {
	for name, test := range map[string]struct {
		trigger string
		asked   eventingv1alpha1.Redrive
		code    int32
		want    string
	}{
		"no Trigger":      {"none", eventingv1alpha1.Redrive{}, http.StatusNotFound, `"none" not found`},
		"leaving Trigger": {"leaving", eventingv1alpha1.Redrive{}, http.StatusConflict, "the object is being deleted"},
		"other name":      {"bill", eventingv1alpha1.Redrive{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, http.StatusBadRequest, "metadata.name must be empty or 'bill'"},
		"rate 0":          {"bill", eventingv1alpha1.Redrive{Rate: ptr.To[int32](0)}, http.StatusUnprocessableEntity, "rate: Invalid value: 0: must be between 1 and 100000 events per second"},
		"rate":            {"bill", eventingv1alpha1.Redrive{Rate: ptr.To[int32](-1)}, http.StatusUnprocessableEntity, "rate: Invalid value: -1"},
		"destination":     {"bill", eventingv1alpha1.Redrive{Destination: &duckv1.Destination{URI: "/x"}}, http.StatusUnprocessableEntity, "destination.uri"},
		"empty selector":  {"bill", eventingv1alpha1.Redrive{Selector: &eventingv1alpha1.EventSelector{}}, http.StatusUnprocessableEntity, "selector: Required value: must have at least one of `id`, `source`, `type` and `filters`"},
		"filter":          {"bill", eventingv1alpha1.Redrive{Selector: &eventingv1alpha1.EventSelector{Filters: []eventingv1.SubscriptionsAPIFilter{{CESQL: "("}}}}, http.StatusUnprocessableEntity, "selector.filters[0].cesql"},
		"filter without dialect": {
			"bill", eventingv1alpha1.Redrive{Selector: &eventingv1alpha1.EventSelector{Filters: []eventingv1.SubscriptionsAPIFilter{{}}}}, http.StatusUnprocessableEntity, "selector.filters[0]",
		},
		"long type": {"bill", eventingv1alpha1.Redrive{Selector: &eventingv1alpha1.EventSelector{Type: strings.Repeat("x", 5000)}}, http.StatusUnprocessableEntity, "selector.type: Too long"},
	} {
		store, r := newTest()
		_, err := redrive(t, r, test.trigger, &test.asked)
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code != test.code || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
		if len(store.runs) > 0 {
			t.Errorf("%s: an EventRun was created", name)
		}
	}
}

// TestResource forbids to create EventRuns, and to change their spec.
func TestResource(t *testing.T) {
	r := resource(identity.Controllers{})
	run := &eventingv1alpha1.EventRun{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "trigger-bill"}}
	if err := r.AllowCreate(t.Context(), run); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "subresource redrive") {
		t.Errorf("create: %v", err)
	}
	run.Spec = eventingv1alpha1.EventRunSpec{Target: eventingv1alpha1.EventRunTarget{Kind: "Trigger", Name: "bill"}, Redrive: &eventingv1alpha1.EventRunRedrive{}}
	changed := run.DeepCopy()
	changed.Labels = map[string]string{"a": "b"}
	if errs := r.ValidateUpdate(t.Context(), changed, run); len(errs) > 0 {
		t.Errorf("labels: %v", errs)
	}
	changed.Spec.Redrive.Rate = ptr.To[int32](1)
	if errs := r.ValidateUpdate(t.Context(), changed, run); len(errs) != 1 || errs[0].Field != "spec" {
		t.Errorf("rate: %v", errs)
	}
	run.Status.Phase, run.Status.Queued, run.Status.Total = eventingv1alpha1.EventRunRunning, 3, ptr.To[int64](7)
	cells := map[string]any{}
	for _, c := range r.Columns {
		cells[c.Name] = c.Value(run)
	}
	if cells["Target"] != "Trigger/bill" || cells["Phase"] != "Running" || cells["Progress"] != "3/7" {
		t.Errorf("table: %v", cells)
	}
}

// TestNameOf returns valid names that differ, also for the longest names of Triggers.
func TestNameOf(t *testing.T) {
	long := strings.Repeat("a", 240) + ".b"
	seen := map[string]bool{}
	for _, name := range []string{"bill", "bill.eu", long + "-1234567890", long + "-1234567891"} {
		got := NameOf(eventingv1alpha1.EventRunTarget{Kind: "Trigger", Name: name})
		if errs := validation.IsDNS1123Subdomain(got); len(errs) > 0 || seen[got] {
			t.Errorf("%s: %s %v", name, got, errs)
		}
		seen[got] = true
	}
}
