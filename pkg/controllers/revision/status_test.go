package revision

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

var began = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

func newRevision() *servingv1.Revision {
	return &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "hello-00001", UID: "u1", Generation: 1, CreationTimestamp: metav1.NewTime(began),
		Labels: map[string]string{servingv1.ServiceLabelKey: "hello", servingv1.ConfigurationLabelKey: "hello"},
	}}
}

// line returns the status and the reason of a condition.
func line(status servingv1.RevisionStatus, t duckv1.ConditionType) string {
	c := status.Conditions.Get(t)
	if c == nil {
		return "missing"
	}
	if c.Reason == "" {
		return string(c.Status)
	}
	return string(c.Status) + " " + c.Reason
}

// TestObserve covers serving 9.4.3-1, 6-6, 6-12 and 6-13: states of a Revision, one after the
// other, and the conditions that follow.
func TestObserve(t *testing.T) {
	const deploying, queued, noTraffic = "Unknown Deploying", "Unknown Queued", "False NoTraffic"
	const resolving = "Unknown ResolvingDigests"
	exit := &workload.Failure{Reason: "ExitCode1", Message: "Container failed with: boom"}
	full := &workload.Failure{Resources: true, Reason: "Unschedulable", Message: "no room"}
	type step struct {
		state                             *workload.State
		after                             time.Duration
		ready, resources, healthy, active string
		next                              time.Duration
	}
	tests := []struct {
		name    string
		initial int32
		steps   []step
	}{
		{"first instance, to zero and back", 1, []step{
			{state: nil, ready: deploying, resources: deploying, healthy: deploying, active: queued, next: 600 * time.Second},
			{state: &workload.State{Desired: 1}, after: time.Second, ready: deploying, resources: deploying, healthy: deploying, active: queued, next: 599 * time.Second},
			{state: &workload.State{Desired: 1, Ready: 1}, ready: "True", resources: "True", healthy: "True", active: "True"},
			{state: &workload.State{}, ready: "True", resources: "True", healthy: "True", active: noTraffic},
			{state: &workload.State{Desired: 1}, ready: "True", resources: "True", healthy: "True", active: queued},
			{state: &workload.State{Desired: 1, Ready: 1}, ready: "True", resources: "True", healthy: "True", active: "True"},
			{state: &workload.State{Ready: 1}, ready: "True", resources: "True", healthy: "True", active: noTraffic},
		}},
		{"containers fail, then an instance gets ready", 1, []step{
			{state: &workload.State{Desired: 1, Failure: exit}, ready: "False ExitCode1", resources: "True", healthy: "False ExitCode1", active: queued},
			{state: &workload.State{Desired: 1}, ready: "False ExitCode1", resources: "True", healthy: "False ExitCode1", active: queued},
			{state: &workload.State{Desired: 1}, after: time.Hour, ready: "False ExitCode1", resources: "True", healthy: "False ExitCode1", active: queued},
			{state: &workload.State{Desired: 1, Ready: 1}, ready: "True", resources: "True", healthy: "True", active: "True"},
		}},
		{"unschedulable, then containers fail", 1, []step{
			{state: &workload.State{Desired: 1, Failure: full}, ready: "False Unschedulable", resources: "False Unschedulable", healthy: deploying, active: queued},
			{state: &workload.State{Desired: 1, Failure: exit}, ready: "False ExitCode1", resources: "True", healthy: "False ExitCode1", active: queued},
		}},
		{"crash after it was ready", 3, []step{
			{state: &workload.State{Desired: 3, Ready: 3}, ready: "True", resources: "True", healthy: "True", active: "True"},
			{state: &workload.State{Desired: 3, Ready: 1, Failure: exit}, ready: "True", resources: "True", healthy: "True", active: "True"},
			{state: &workload.State{Desired: 3, Failure: exit}, ready: "False ExitCode1", resources: "True", healthy: "False ExitCode1", active: queued},
			{state: &workload.State{}, ready: "False ExitCode1", resources: "True", healthy: "False ExitCode1", active: noTraffic},
			{state: &workload.State{Desired: 3, Ready: 1}, ready: "True", resources: "True", healthy: "True", active: "True"},
		}},
		{"unschedulable after it was ready", 1, []step{
			{state: &workload.State{Desired: 1, Ready: 1}, ready: "True", resources: "True", healthy: "True", active: "True"},
			{state: &workload.State{Desired: 1, Failure: full}, ready: "False Unschedulable", resources: "False Unschedulable", healthy: "True", active: queued},
		}},
		{"initial scale must be reached", 3, []step{
			{state: &workload.State{Desired: 3, Ready: 2}, ready: deploying, resources: deploying, healthy: deploying, active: queued, next: 600 * time.Second},
			{state: &workload.State{Desired: 3, Ready: 3}, ready: "True", resources: "True", healthy: "True", active: "True"},
		}},
		{"initial scale above the autoscaler's limit", 3, []step{
			{state: &workload.State{Desired: 2, Ready: 2}, ready: "True", resources: "True", healthy: "True", active: "True"},
		}},
		{"images that take long to resolve", 1, []step{
			{state: &workload.State{Resolving: true}, ready: deploying, resources: deploying, healthy: deploying, active: queued, next: 2 * time.Second},
			{state: &workload.State{Resolving: true}, after: 2 * time.Second, ready: resolving, resources: resolving, healthy: resolving, active: queued, next: 598 * time.Second},
			{state: &workload.State{Desired: 1}, ready: deploying, resources: deploying, healthy: deploying, active: queued, next: 598 * time.Second},
		}},
		{"initial scale zero", 0, []step{
			{state: &workload.State{}, ready: "True", resources: "True", healthy: "True", active: noTraffic},
		}},
		{"initial scale zero, but no image", 0, []step{
			{state: &workload.State{Failure: &workload.Failure{Reason: "ContainerMissing"}}, ready: "False ContainerMissing", resources: "True", healthy: "False ContainerMissing", active: queued},
		}},
		{"exceeds the deadline, then becomes ready", 1, []step{
			{state: &workload.State{Desired: 1}, after: 600 * time.Second, ready: "False ProgressDeadlineExceeded", resources: "False ProgressDeadlineExceeded", healthy: deploying, active: queued},
			{state: &workload.State{Desired: 1, Ready: 1}, ready: "True", resources: "True", healthy: "True", active: "True"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			revision, now := newRevision(), began
			for i, s := range tt.steps {
				now = now.Add(s.after)
				status, next := observe(facts{revision: revision, state: s.state, initial: tt.initial, deadline: 10 * time.Minute, since: began.Add(-time.Hour), now: now})
				for condition, want := range map[duckv1.ConditionType]string{
					duckv1.ConditionReady:                         s.ready,
					servingv1.RevisionConditionResourcesAvailable: s.resources,
					servingv1.RevisionConditionContainerHealthy:   s.healthy,
					servingv1.RevisionConditionActive:             s.active,
				} {
					if got := line(status, condition); got != want {
						t.Errorf("step %d: %s is %q, want %q", i, condition, got, want)
					}
				}
				if next != s.next {
					t.Errorf("step %d: next observation after %v, want %v", i, next, s.next)
				}
				if status.ObservedGeneration != 1 {
					t.Errorf("step %d: observedGeneration is %d, want 1", i, status.ObservedGeneration)
				}
				revision.Status = status
			}
		})
	}
}

// TestObserveKeepsStarted checks that a Revision that was ready before is recorded as started while it fails, because
// its initial scale depends on that.
func TestObserveKeepsStarted(t *testing.T) {
	revision := newRevision()
	for i, step := range []struct {
		state workload.State
		want  bool
	}{
		{workload.State{Desired: 1, Failure: &workload.Failure{Reason: "ExitCode1"}}, false},
		{workload.State{Desired: 1, Ready: 1}, true},
		{workload.State{Desired: 1, Failure: &workload.Failure{Reason: "ExitCode1"}}, true},
		{workload.State{}, true},
		{workload.State{Desired: 1, Ready: 1}, true},
	} {
		status, _ := observe(facts{revision: revision, state: &step.state, initial: 1, now: began})
		if got := started(&status); got != step.want {
			t.Errorf("step %d: started is %v, want %v", i, got, step.want)
		}
		revision.Status = status
	}
	if revision.Status.Annotations[startedAnnotationKey] != "" {
		t.Errorf("a healthy Revision has annotations %v in its status, want none", revision.Status.Annotations)
	}
}

// TestObserveDetails covers serving 9.4.3-4 and 9.4.3-7: logUrl, container statuses and replicas are copied from the
// runtime, and stay if it does not report them. It covers serving 6-16.
func TestObserveDetails(t *testing.T) {
	revision := newRevision()
	state := &workload.State{Desired: 2, Ready: 1, LogURL: "file:///logs", Containers: []servingv1.ContainerStatus{{Name: "a", ImageDigest: "a@sha256:1"}}}
	revision.Status, _ = observe(facts{revision: revision, state: state, initial: 1, now: began})
	status, _ := observe(facts{revision: revision, initial: 1, now: began.Add(time.Hour)})
	if status.LogURL != "file:///logs" || len(status.ContainerStatuses) != 1 ||
		ptr.Deref(status.ActualReplicas, -1) != 1 || ptr.Deref(status.DesiredReplicas, -1) != 2 || line(status, servingv1.RevisionConditionActive) != "True" {
		t.Errorf("status is %+v, want the last state of the runtime", status)
	}
	if c := status.Conditions.Get(servingv1.RevisionConditionActive); c.Severity != duckv1.ConditionSeverityInfo || c.Status != corev1.ConditionTrue {
		t.Errorf("Active is %+v, want True of severity Info (serving 6-16)", c)
	}
}

// TestObserveDeadline checks that a Revision that is older than this process gets its whole deadline, and then reports
// that it was exceeded (serving 6-6).
func TestObserveDeadline(t *testing.T) {
	revision := newRevision()
	revision.Annotations = map[string]string{servingv1.ProgressDeadlineAnnotationKey: "30s"}
	current := settings.Default("example.com")
	current.Deployment.ProgressDeadline = 42 * time.Second
	deadline := progressDeadline(revision.Annotations, &current)
	if got := progressDeadline(nil, &current); got != 42*time.Second {
		t.Errorf("without the annotation the deadline is %v, want 42s", got)
	}
	since := began.Add(time.Hour)
	status, next := observe(facts{revision: revision, initial: 1, deadline: deadline, since: since, now: since.Add(10 * time.Second)})
	if next != 20*time.Second || line(status, duckv1.ConditionReady) != "Unknown Deploying" {
		t.Errorf("Ready is %q and next %v, want to wait 20s", line(status, duckv1.ConditionReady), next)
	}
	status, _ = observe(facts{revision: revision, initial: 1, deadline: deadline, since: since, now: since.Add(30 * time.Second)})
	want := "Initial scale was never achieved. The revision did not become ready within 30s (serving.knative.dev/progress-deadline)."
	if got := status.Conditions.Get(duckv1.ConditionReady).Message; got != want {
		t.Errorf("the message is %q, want %q", got, want)
	}
}

// TestObserveImages checks that the digests of images are reported, and an image that runs by its tag, which does not
// affect Ready (serving 9.4.3-8). It covers serving 10.1-1 and 10.1-2. It covers serving 9.4.3-6.
func TestObserveImages(t *testing.T) {
	revision := newRevision()
	resolved := []servingv1.ContainerStatus{{Name: "user-container", ImageDigest: "cart@sha256:1"}}
	tagged := []servingv1.ContainerStatus{{Name: "user-container"}}
	setup := []servingv1.ContainerStatus{{Name: "setup", ImageDigest: "setup@sha256:2"}}
	for i, step := range []struct {
		state *workload.State
		want  string
	}{
		{&workload.State{Desired: 1, Ready: 1, Containers: resolved, InitContainers: setup}, "missing"},
		{&workload.State{Desired: 1, Ready: 1, Containers: tagged, InitContainers: setup, Warning: "no answer"}, "False ImagesUnresolved"},
		{nil, "False ImagesUnresolved"},
		{&workload.State{Resolving: true}, "False ImagesUnresolved"},
		{&workload.State{Desired: 1, Ready: 1, Containers: resolved, InitContainers: setup}, "True"},
	} {
		revision.Status, _ = observe(facts{revision: revision, state: step.state, initial: 1, deadline: time.Hour, now: began})
		if got := line(revision.Status, ConditionImagesResolved); got != step.want {
			t.Errorf("step %d: ImagesResolved is %q, want %q", i, got, step.want)
		}
		if c := revision.Status.Conditions.Get(ConditionImagesResolved); c != nil && c.Severity != duckv1.ConditionSeverityWarning {
			t.Errorf("step %d: the severity is %q, want Warning", i, c.Severity)
		}
		if got := line(revision.Status, duckv1.ConditionReady); got != "True" {
			t.Errorf("step %d: Ready is %q, want True", i, got)
		}
		if diff := cmp.Diff(setup, revision.Status.InitContainerStatuses); diff != "" {
			t.Errorf("step %d: initContainerStatuses (-want +got):\n%s", i, diff)
		}
	}
	if diff := cmp.Diff(resolved, revision.Status.ContainerStatuses); diff != "" {
		t.Errorf("containerStatuses (-want +got):\n%s", diff)
	}
}
