package kubernetes

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

// Reasons of failures, as in Kubernetes and Knative. Failures also have the reasons of waiting containers.
const (
	reasonContainerMissing = "ContainerMissing"
	reasonConfigError      = "CreateContainerConfigError"
	reasonExitCode         = "ExitCode"
	reasonFailedCreate     = "FailedCreate"
	reasonImagePull        = "ImagePullBackOff"
	reasonNotOwned         = "NotOwned"
	reasonUnhealthy        = "Unhealthy"
)

// Reasons of waiting containers. The kubelet's constants are not in k8s.io/api.
const (
	waitingCreating     = "ContainerCreating"
	waitingInitializing = "PodInitializing"
	waitingCrashLoop    = "CrashLoopBackOff"
	waitingPull         = "ErrImagePull"
	waitingImageName    = "InvalidImageName"
	waitingNeverPull    = "ErrImageNeverPull"
	waitingInspect      = "ImageInspectError"
	waitingRegistry     = "RegistryUnavailable"
	waitingSignature    = "SignatureValidationFailed"
)

// replicaSetRefused is the reason of a Deployment that does not progress because its ReplicaSet cannot be created. The
// constant is not in k8s.io/api either.
const replicaSetRefused = "ReplicaSetCreateError"

// failure returns the reason why the newest Pods do not become ready, or nil. pods are oldest first. If Pods are always
// schedulable, a Pod without a node has not failed.
func failure(pods []*pod, deployment *appsv1.Deployment, alwaysSchedulable bool) *workload.Failure {
	for _, p := range slices.Backward(pods) {
		if p.deleted() || p.ready() {
			continue
		}
		if failure := p.failure(alwaysSchedulable); failure != nil {
			return failure
		}
	}
	for i := range deployment.Status.Conditions {
		if c := &deployment.Status.Conditions[i]; isRefusal(c) {
			return &workload.Failure{Resources: true, Reason: reasonFailedCreate, Message: c.Message}
		}
	}
	return nil
}

// isRefusal reports whether a condition of a Deployment states that its ReplicaSet or Pods are refused, by quota, Pod
// Security, policies or webhooks.
func isRefusal(c *appsv1.DeploymentCondition) bool {
	return c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue ||
		c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == replicaSetRefused
}

// failure returns the reason why a Pod is not ready, or nil if it may still be starting.
func (p *pod) failure(alwaysSchedulable bool) *workload.Failure {
	if p.Status.Phase == corev1.PodFailed {
		return &workload.Failure{Resources: true, Reason: cmp.Or(p.Status.Reason, "PodFailed"), Message: cmp.Or(p.Status.Message, "The Pod has failed.")}
	}
	if c := p.condition(corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable && !alwaysSchedulable {
		return &workload.Failure{Resources: true, Reason: c.Reason, Message: c.Message}
	}
	subject := func(s *corev1.ContainerStatus, init bool) string {
		if !init && (len(p.Spec.Containers) == 1 || s.Name == p.Spec.Containers[podspec.ServingContainer(p.Spec.Containers)].Name) {
			return "Container"
		}
		return fmt.Sprintf("Container %q", s.Name)
	}
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		if t := s.State.Terminated; t != nil && t.ExitCode == 0 {
			continue
		}
		if failure := containerFailure(s, subject(s, true), p.served); failure != nil {
			return failure
		}
	}
	for i := range p.Status.ContainerStatuses {
		s := &p.Status.ContainerStatuses[i]
		if failure := containerFailure(s, subject(s, false), p.served); failure != nil {
			return failure
		}
	}
	if p.stuck != nil {
		return p.stuck
	}
	return p.unhealthy
}

// containerFailure returns the reason why a container does not run, or nil. After the Pod has served requests, a first exit
// of a container is not a failure, because the container restarts.
func containerFailure(s *corev1.ContainerStatus, subject string, served bool) *workload.Failure {
	if t := s.State.Terminated; t != nil {
		if served && s.RestartCount == 0 {
			return nil
		}
		return exit(t, subject)
	}
	w := s.State.Waiting
	if w == nil {
		if t := s.LastTerminationState.Terminated; t != nil && !s.Ready && s.RestartCount > 0 && !(served && s.RestartCount == 1) {
			return exit(t, subject)
		}
		return nil
	}
	switch w.Reason {
	case "", waitingCreating, waitingInitializing:
		return nil
	case waitingCrashLoop:
		if t := s.LastTerminationState.Terminated; t != nil {
			return exit(t, subject)
		}
		return &workload.Failure{Reason: w.Reason, Message: w.Message}
	case waitingPull, reasonImagePull, waitingImageName, waitingNeverPull, waitingInspect, waitingRegistry, waitingSignature:
		// While it waits for the next attempt, the kubelet prefixes the message of the last one. Without the prefix the
		// status does not change with each attempt.
		message := w.Message
		if _, why, ok := strings.Cut(message, waitingPull+": "); ok {
			message = why
		}
		return &workload.Failure{Resources: true, Reason: reasonImagePull, Message: fmt.Sprintf("Unable to fetch image %q: %s", s.Image, cmp.Or(message, w.Reason))}
	default:
		return &workload.Failure{Resources: w.Reason == reasonConfigError, Reason: w.Reason, Message: fmt.Sprintf("%s cannot be started: %s", subject, cmp.Or(w.Message, w.Reason))}
	}
}

// exit describes the exit of a container. The message has the code too, because Configuration and Service repeat the message with their own reasons.
func exit(t *corev1.ContainerStateTerminated, subject string) *workload.Failure {
	why := strings.TrimSpace(t.Message)
	if why == "" {
		why = t.Reason
	}
	return &workload.Failure{
		Reason:  reasonExitCode + strconv.Itoa(int(t.ExitCode)),
		Message: fmt.Sprintf("%s failed with: %s (exit code %d)", subject, cmp.Or(why, "no message"), t.ExitCode),
	}
}
