package kubernetes

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

func TestFailure(t *testing.T) {
	waiting := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.ContainerStatuses[0].Image = "cart:v1"
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
		}
	}
	exited := func(code int32, reason, message string) *corev1.ContainerStateTerminated {
		return &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}
	}
	pull := &workload.Failure{Resources: true, Reason: "ImagePullBackOff", Message: `Unable to fetch image "cart:v1": cart:v1: not found`}
	crash := &workload.Failure{Reason: "ExitCode3", Message: "Container failed with: no database (exit code 3)"}
	sidecarCrashed := func(p *corev1.Pod) {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "proxy", State: corev1.ContainerState{Terminated: exited(3, "Error", "no lease")}}}
	}
	tests := map[string]struct {
		pod    func(*corev1.Pod)
		served bool
		status appsv1.DeploymentStatus
		want   *workload.Failure
	}{
		"starting":         {pod: waiting("ContainerCreating", "")},
		"pull failed":      {pod: waiting("ErrImagePull", "cart:v1: not found"), want: pull},
		"pull failed once": {pod: waiting("ImagePullBackOff", `Back-off pulling image "cart:v1": ErrImagePull: cart:v1: not found`), want: pull},
		"no such Secret": {
			pod:  waiting("CreateContainerConfigError", `secret "token" not found`),
			want: &workload.Failure{Resources: true, Reason: "CreateContainerConfigError", Message: `Container cannot be started: secret "token" not found`},
		},
		"no such program": {
			pod:  waiting("RunContainerError", "exec: foo: not found"),
			want: &workload.Failure{Reason: "RunContainerError", Message: "Container cannot be started: exec: foo: not found"},
		},
		"crashed": {
			pod: func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: exited(3, "Error", "no database\n")}
			},
			want: crash,
		},
		"crashed while it served": {
			pod: func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: exited(3, "Error", "no database\n")}
			},
			served: true,
		},
		"waits after crashes": {
			pod: func(p *corev1.Pod) {
				waiting("CrashLoopBackOff", "back-off 10s")(p)
				p.Status.ContainerStatuses[0].LastTerminationState.Terminated = exited(3, "Error", "no database")
			},
			served: true,
			want:   crash,
		},
		"runs again after crashes": {
			pod: func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].RestartCount = 2
				p.Status.ContainerStatuses[0].LastTerminationState.Terminated = exited(3, "Error", "no database")
			},
			want: crash,
		},
		"out of memory": {
			pod: func(p *corev1.Pod) {
				p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: exited(137, "OOMKilled", "")}
			},
			want: &workload.Failure{Reason: "ExitCode137", Message: "Container failed with: OOMKilled (exit code 137)"},
		},
		"init container fails": {
			pod: func(p *corev1.Pod) {
				waiting("PodInitializing", "")(p)
				p.Status.InitContainerStatuses = []corev1.ContainerStatus{
					{Name: "first", State: corev1.ContainerState{Terminated: exited(0, "Completed", "")}},
					{Name: "second", State: corev1.ContainerState{Terminated: exited(1, "Error", "bad schema")}},
				}
			},
			want: &workload.Failure{Reason: "ExitCode1", Message: `Container "second" failed with: bad schema (exit code 1)`},
		},
		"native sidecar crashes":                      {pod: sidecarCrashed, want: &workload.Failure{Reason: "ExitCode3", Message: `Container "proxy" failed with: no lease (exit code 3)`}},
		"native sidecar crashes while the Pod serves": {pod: sidecarCrashed, served: true},
		"no node": {
			pod: func(p *corev1.Pod) {
				p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
					Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient cpu.",
				}}}
			},
			want: &workload.Failure{Resources: true, Reason: "Unschedulable", Message: "0/1 nodes are available: 1 Insufficient cpu."},
		},
		"evicted": {
			pod: func(p *corev1.Pod) {
				p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on memory."}
			},
			want: &workload.Failure{Resources: true, Reason: "Evicted", Message: "The node was low on memory."},
		},
		"quota": {
			status: appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{{
				Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota: pods",
			}}},
			want: &workload.Failure{Resources: true, Reason: "FailedCreate", Message: "exceeded quota: pods"},
		},
		"quota of ReplicaSets": {
			status: appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, Reason: "MinimumReplicasUnavailable"},
				{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ReplicaSetCreateError", Message: "exceeded quota: sets"},
			}},
			want: &workload.Failure{Resources: true, Reason: "FailedCreate", Message: "exceeded quota: sets"},
		},
		"takes long": {
			status: appsv1.DeploymentStatus{Conditions: []appsv1.DeploymentCondition{{
				Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded", Message: "timed out",
			}}},
		},
		"is deleted": {pod: func(p *corev1.Pod) { waiting("ErrImagePull", "")(p); isDeleted(p) }},
		"is ready":   {pod: isReady},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var pods []*pod
			if test.pod != nil {
				p := newPod()
				p.update(newBackendPod("a", test.pod))
				p.served = test.served
				pods = append(pods, p)
			}
			if diff := cmp.Diff(test.want, failure(pods, &appsv1.Deployment{Status: test.status}, false)); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAlwaysSchedulable checks that a Pod without a node has not failed if Pods are always schedulable.
func TestAlwaysSchedulable(t *testing.T) {
	p := newPod()
	p.update(newBackendPod("a", func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	}))
	if got := failure([]*pod{p}, &appsv1.Deployment{}, false); got == nil || got.Reason != corev1.PodReasonUnschedulable {
		t.Errorf("failure %+v, want the missing node", got)
	}
	if got := failure([]*pod{p}, &appsv1.Deployment{}, true); got != nil {
		t.Errorf("failure %+v, want none", got)
	}
}

func TestFailureOfTheNewestPod(t *testing.T) {
	older, newer := newPod(), newPod()
	older.update(newBackendPod("a"))
	newer.update(newBackendPod("b"))
	older.stuck, newer.stuck = &workload.Failure{Reason: "old"}, &workload.Failure{Reason: "new"}
	if got := failure([]*pod{older, newer}, &appsv1.Deployment{}, false); got == nil || got.Reason != "new" {
		t.Errorf("failure %+v, want the failure of the newest Pod", got)
	}
}
