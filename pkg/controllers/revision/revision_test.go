package revision

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	servinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

var key = types.NamespacedName{Namespace: "default", Name: "hello-00001"}

// fakeRuntime returns the states that a test sets.
type fakeRuntime struct {
	workload.Runtime
	states  map[types.NamespacedName]workload.State
	removed []types.UID
}

func (f *fakeRuntime) Apply(_ context.Context, revision *servingv1.Revision, _ bool) error {
	key := types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name}
	if _, ok := f.states[key]; !ok {
		f.states[key] = workload.State{UID: revision.UID}
	}
	return nil
}

func (f *fakeRuntime) Remove(_ context.Context, key types.NamespacedName, uid types.UID, _ bool) error {
	f.removed = append(f.removed, uid)
	delete(f.states, key)
	return nil
}

func (f *fakeRuntime) State(key types.NamespacedName) (workload.State, bool) {
	state, ok := f.states[key]
	return state, ok
}

// fakeSink records the Revisions that it gets.
type fakeSink struct {
	revisions map[routing.Key]*routing.Revision
	calls     int
}

func (f *fakeSink) SetRevision(revision *routing.Revision) {
	f.calls++
	f.revisions[revision.Key] = revision
}

func (f *fakeSink) DeleteRevision(key routing.Key) { delete(f.revisions, key) }

// fixture is a Reconciler with fake dependencies.
type fixture struct {
	*Reconciler
	client  *fake.Clientset
	indexer cache.Indexer
	runtime *fakeRuntime
	sink    *fakeSink
	clock   *clocktesting.FakePassiveClock
	events  *record.FakeRecorder
	// result is the Result of the latest reconciliation.
	result reconciler.Result
}

func newFixture(t *testing.T, revision *servingv1.Revision) *fixture {
	t.Helper()
	f := &fixture{
		client:  fake.NewSimpleClientset(revision),
		indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		runtime: &fakeRuntime{states: map[types.NamespacedName]workload.State{}},
		clock:   clocktesting.NewFakePassiveClock(began),
	}
	f.restart()
	f.list(t)
	return f
}

// restart replaces the Reconciler by a new one for the same objects.
func (f *fixture) restart() {
	f.sink, f.events = &fakeSink{revisions: map[routing.Key]*routing.Revision{}}, record.NewFakeRecorder(100)
	current := settings.Default("example.com")
	f.Reconciler = &Reconciler{
		Client: f.client.ServingV1(), Lister: servinglisters.NewRevisionLister(f.indexer), Runtime: f.runtime, Sinks: []Sink{f.sink},
		Recorder: f.events, Clock: f.clock, Settings: func() *settings.Settings { return &current }, Since: f.clock.Now(),
	}
}

// list updates the lister.
func (f *fixture) list(t *testing.T) {
	t.Helper()
	revision, err := f.client.Tracker().Get(servingv1.SchemeGroupVersion.WithResource("revisions"), key.Namespace, key.Name)
	if err != nil {
		t.Fatalf("reading the Revision: %v", err)
	}
	if err := f.indexer.Update(revision); err != nil {
		t.Fatalf("updating the lister: %v", err)
	}
}

// reconcile returns the number of writes, and the events.
func (f *fixture) reconcile(t *testing.T) (writes int, events []string) {
	t.Helper()
	f.client.ClearActions()
	var err error
	if f.result, err = f.Reconcile(t.Context(), reconciler.NewRequest(key, true)); err != nil {
		t.Fatalf("reconciling: %v", err)
	}
	for len(f.events.Events) > 0 {
		events = append(events, <-f.events.Events)
	}
	writes = len(f.client.Actions())
	if _, exists, _ := f.indexer.GetByKey(key.String()); exists {
		f.list(t)
	}
	return writes, events
}

func (f *fixture) observe(state workload.State) {
	state.UID = "u1"
	f.runtime.states[key] = state
}

func (f *fixture) stored(t *testing.T) *servingv1.RevisionStatus {
	t.Helper()
	revision, err := f.Lister.Revisions(key.Namespace).Get(key.Name)
	if err != nil {
		t.Fatal(err)
	}
	return &revision.Status
}

// TestReconcileWritesFewTimes covers serving 9.4.3-1: from its creation to Ready a Revision's status is written
// twice, and not at all while nothing changes, also after a restart.
func TestReconcileWritesFewTimes(t *testing.T) {
	f := newFixture(t, newRevision())
	if writes, _ := f.reconcile(t); writes != 1 {
		t.Fatalf("a new Revision has %d writes, want 1", writes)
	}
	f.observe(workload.State{Desired: 1})
	if writes, _ := f.reconcile(t); writes != 0 {
		t.Errorf("the first requested instance makes %d writes, want 0 for some time", writes)
	}
	f.observe(workload.State{Desired: 1, Ready: 1})
	writes, events := f.reconcile(t)
	if writes != 1 {
		t.Errorf("the first ready instance makes %d writes, want 1", writes)
	}
	if want := []string{"Normal Scaled Scaled from 0 to 1 instances", "Normal Ready Became ready"}; !slices.Equal(events, want) {
		t.Errorf("events are %q, want %q", events, want)
	}
	f.restart()
	f.clock.SetTime(began.Add(time.Hour))
	if writes, events := f.reconcile(t); writes != 0 || len(events) > 0 {
		t.Errorf("after a restart there are %d writes and events %q, want none", writes, events)
	}
	if f.sink.revisions[key] == nil || !f.sink.revisions[key].Started {
		t.Errorf("after a restart the sink has %+v, want the Revision, started", f.sink.revisions[key])
	}
	if f.reconcile(t); f.sink.calls != 1 {
		t.Errorf("the sink was called %d times, want once", f.sink.calls)
	}
}

// TestReconcileCoalescesScale checks that a scale that changes quickly is written at once the first time, and then once a second.
func TestReconcileCoalescesScale(t *testing.T) {
	f := newFixture(t, newRevision())
	f.observe(workload.State{Desired: 1, Ready: 1})
	f.reconcile(t)
	f.clock.SetTime(began.Add(time.Second))
	f.observe(workload.State{Desired: 2, Ready: 1})
	if writes, _ := f.reconcile(t); writes != 1 {
		t.Errorf("a first change makes %d writes, want 1", writes)
	}
	f.clock.SetTime(began.Add(1200 * time.Millisecond))
	f.observe(workload.State{Desired: 3, Ready: 2})
	if writes, _ := f.reconcile(t); writes != 0 || f.result.RequeueAfter != 800*time.Millisecond {
		t.Errorf("a change soon after makes %d writes and a delay of %v, want 0 and 800ms", writes, f.result.RequeueAfter)
	}
	f.clock.SetTime(began.Add(2 * time.Second))
	if writes, _ := f.reconcile(t); writes != 1 || *f.stored(t).DesiredReplicas != 3 || *f.stored(t).ActualReplicas != 2 {
		t.Errorf("later there are %d writes and replicas %d/%d, want 1 and 2/3", writes, *f.stored(t).ActualReplicas, *f.stored(t).DesiredReplicas)
	}
	f.observe(workload.State{Desired: 3, Failure: &workload.Failure{Reason: "ExitCode3", Message: "Container failed with: boom"}})
	writes, events := f.reconcile(t)
	if writes != 1 || !slices.Equal(events, []string{"Warning ExitCode3 Container failed with: boom"}) {
		t.Errorf("a failure makes %d writes and events %q, want one of each at once", writes, events)
	}
}

// TestReconcileRestart checks that nothing is written about instances that a restarted runtime has not observed yet.
func TestReconcileRestart(t *testing.T) {
	f := newFixture(t, newRevision())
	f.observe(workload.State{Desired: 1, Ready: 1})
	f.reconcile(t)
	f.clock.SetTime(began.Add(time.Hour))
	f.runtime.states = map[types.NamespacedName]workload.State{}
	f.restart()
	if writes, _ := f.reconcile(t); writes != 0 {
		t.Errorf("a runtime without instances yet makes %d writes, want 0", writes)
	}
	f.observe(workload.State{Desired: 1, Ready: 1})
	if writes, _ := f.reconcile(t); writes != 0 {
		t.Errorf("the instances found again make %d writes, want 0", writes)
	}
}

// TestReconcileGone covers serving 7.3: deleting a Revision stops its backends.
func TestReconcileGone(t *testing.T) {
	f := newFixture(t, newRevision())
	f.reconcile(t)
	if err := f.indexer.Delete(newRevision()); err != nil {
		t.Fatal(err)
	}
	writes, _ := f.reconcile(t)
	if writes != 0 || !slices.Equal(f.runtime.removed, []types.UID{"u1"}) || len(f.sink.revisions) > 0 {
		t.Errorf("%d writes, removed %q, sink %v; want 0 writes and the Revision removed everywhere", writes, f.runtime.removed, f.sink.revisions)
	}
	if f.reconcile(t); len(f.runtime.removed) != 1 {
		t.Errorf("removed %q, want once", f.runtime.removed)
	}
}

// TestReconcileOtherUID checks that the instances of an older Revision of the same name are ignored.
func TestReconcileOtherUID(t *testing.T) {
	f := newFixture(t, newRevision())
	f.runtime.states[key] = workload.State{UID: "u0", Desired: 1, Ready: 1}
	f.reconcile(t)
	if ready := f.stored(t).Conditions.Get(duckv1.ConditionReady); ready.Status != corev1.ConditionUnknown {
		t.Errorf("Ready is %+v, want Unknown", ready)
	}
}

// TestRouted covers serving 9.4.2: the value of a Revision for the data plane.
func TestRouted(t *testing.T) {
	revision := newRevision()
	revision.Labels[servingv1.RoutingStateLabelKey] = servingv1.RoutingStateActive
	revision.Annotations = map[string]string{servingv1.MinScaleAnnotationKey: "1"}
	revision.Spec = servingv1.RevisionSpec{
		PodSpec: corev1.PodSpec{Containers: []corev1.Container{{Name: "sidecar"},
			{Name: "user-container", Ports: []corev1.ContainerPort{{Name: "h2c", ContainerPort: 9000}}}}},
		ContainerConcurrency: ptr.To[int64](5), IdleTimeoutSeconds: ptr.To[int64](7),
	}
	want := &routing.Revision{
		Key: key, UID: "u1", Service: "hello", Configuration: "hello", Protocol: routing.H2C, ContainerConcurrency: 5,
		Timeout: 300 * time.Second, IdleTimeout: 7 * time.Second, Autoscaling: routing.Autoscaling{Min: ptr.To[int32](1)}, Reachable: true, Started: true,
	}
	if diff := cmp.Diff(want, routed(revision, true)); diff != "" {
		t.Errorf("revision (-want +got):\n%s", diff)
	}
	revision.Spec.Containers[1].Ports[0].Name = "http1"
	revision.Labels[servingv1.RoutingStateLabelKey] = servingv1.RoutingStateReserve
	if got := routed(revision, false); got.Protocol != routing.HTTP1 || got.Reachable || got.Started {
		t.Errorf("revision is %+v, want HTTP/1.1, neither reachable nor started", got)
	}
}

// TestAutoscaling covers the annotations that set the options of autoscaling, with current and former names.
func TestAutoscaling(t *testing.T) {
	both := map[string]string{
		"autoscaling.knative.dev/metric": "rps", "autoscaling.knative.dev/target": "50", "autoscaling.knative.dev/window": "30s",
		"autoscaling.knative.dev/activation-scale": "4", "serving.knative.dev/progress-deadline": "1m",
	}
	present := map[string]string{
		"target-utilization-percentage": "80", "target-burst-capacity": "-1", "panic-window-percentage": "20",
		"panic-threshold-percentage": "150", "min-scale": "2", "max-scale": "9", "initial-scale": "3",
		"scale-down-delay": "15s", "scale-to-zero-pod-retention-period": "1m",
	}
	legacy := map[string]string{
		"targetUtilizationPercentage": "80", "targetBurstCapacity": "-1", "panicWindowPercentage": "20",
		"panicThresholdPercentage": "150", "minScale": "2", "maxScale": "9", "initialScale": "3",
		"scaleDownDelay": "15s", "scaleToZeroPodRetentionPeriod": "1m",
	}
	want := routing.Autoscaling{
		RPS: true, Target: ptr.To(50.0), TargetUtilization: ptr.To(80.0), BurstCapacity: ptr.To(-1.0),
		PanicWindow: ptr.To(20.0), PanicThreshold: ptr.To(150.0),
		Min: ptr.To[int32](2), Max: ptr.To[int32](9), Initial: ptr.To[int32](3), Activation: ptr.To[int32](4),
		StableWindow: ptr.To(30 * time.Second), ScaleDownDelay: ptr.To(15 * time.Second), Retention: ptr.To(time.Minute),
		ProgressDeadline: ptr.To(time.Minute),
	}
	for name, spelling := range map[string]map[string]string{"present": present, "legacy": legacy} {
		t.Run(name, func(t *testing.T) {
			annotations := maps.Clone(both)
			for key, value := range spelling {
				annotations[servingv1.AutoscalingGroupName+"/"+key] = value
			}
			if diff := cmp.Diff(want, autoscaling(annotations)); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
		})
	}
	invalid := map[string]string{
		"autoscaling.knative.dev/target": "NaN", "autoscaling.knative.dev/target-utilization-percentage": "x",
		"autoscaling.knative.dev/target-burst-capacity": "+Inf", "autoscaling.knative.dev/max-scale": "-1",
		"autoscaling.knative.dev/initial-scale": "9999999999", "autoscaling.knative.dev/window": "-1s",
		"autoscaling.knative.dev/metric": "cpu", "serving.knative.dev/progress-deadline": "10",
	}
	if diff := cmp.Diff(routing.Autoscaling{}, autoscaling(invalid)); diff != "" {
		t.Errorf("options of invalid annotations (-want +got):\n%s", diff)
	}
}

// TestInitialScale reads annotations and settings.
func TestInitialScale(t *testing.T) {
	tests := []struct {
		annotations string
		allowZero   bool
		want        int32
	}{
		{"", false, 1},
		{"initial-scale=3", false, 3},
		{"initial-scale=0", true, 0},
		{"initial-scale=0", false, 1},
		{"initialScale=2", false, 2},
		{"initial-scale=0 min-scale=2", true, 2},
	}
	for _, tt := range tests {
		annotations := map[string]string{}
		for _, field := range strings.Fields(tt.annotations) {
			name, value, _ := strings.Cut(field, "=")
			annotations[servingv1.AutoscalingGroupName+"/"+name] = value
		}
		s := settings.Default("example.com")
		s.API.AllowZeroInitialScale = tt.allowZero
		if got := s.InitialScaleOf(annotations); got != tt.want {
			t.Errorf("initial scale of %q is %d, want %d", tt.annotations, got, tt.want)
		}
	}
}
