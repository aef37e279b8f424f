package harness

import (
	"errors"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestSignalOfEnded covers Pods that have not started yet or have ended: ErrNoProcess tells them from signals that fail.
func TestSignalOfEnded(t *testing.T) {
	for name, containers := range map[string][]corev1.ContainerStatus{
		"no container": nil, "not started": {{Name: "app"}}, "ended": {{Name: "app", ContainerID: "containerd://0123456789abcdef"}},
	} {
		pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: containers}}
		pod.UID = "f9a3e5e2-0000-0000-0000-000000000000"
		if err := new(Node).Signal(pod, syscall.SIGKILL); !errors.Is(err, ErrNoProcess) {
			t.Errorf("%s: %v, want %v", name, err, ErrNoProcess)
		}
	}
}
