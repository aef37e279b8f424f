package operator

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kill sends SIGKILL to all processes of all containers of a Pod, and waits until the kubelet has restarted them.
func kill(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := node.Signal(pod, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, recovery, "the containers of Pod "+pod.Name+" run again", func(ctx context.Context) error {
		now, err := node.Host.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range now.Status.ContainerStatuses {
			before, after := &pod.Status.ContainerStatuses[i], &now.Status.ContainerStatuses[i]
			if after.RestartCount <= before.RestartCount || !after.Ready {
				return fmt.Errorf("container %s was restarted %d times, its state is %v", after.Name, after.RestartCount, after.State)
			}
		}
		return nil
	})
}

// awaitGone waits until a Pod does not exist, or another one has its name.
func awaitGone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t, patience, "Pod "+pod.Name+" is gone", func(ctx context.Context) error {
		now, err := node.Host.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.UID == pod.UID {
			return errors.New("it still exists")
		}
		return nil
	})
}
