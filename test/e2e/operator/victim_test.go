package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kill sends SIGKILL to all processes of all containers of a Pod, and waits until the kubelet has restarted them.
func kill(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if len(pod.Status.ContainerStatuses) == 0 {
		t.Fatalf("Pod %s has no containers", pod.Name)
	}
	for i := range pod.Status.ContainerStatuses {
		_, id, _ := strings.Cut(pod.Status.ContainerStatuses[i].ContainerID, "://")
		if err := killContainer(string(pod.UID), id); err != nil {
			t.Fatalf("killing container %s of Pod %s: %v", pod.Status.ContainerStatuses[i].Name, pod.Name, err)
		}
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

// killContainer kills the processes of a container, which are in its cgroup below the Pod's.
func killContainer(podUID, container string) error {
	if podUID == "" || container == "" {
		return errors.New("it does not run")
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	killed := 0
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !inContainer(pid, podUID, container) {
			continue
		}
		// The process is opened first and checked again, so that no other process that reuses the pid is killed.
		process, err := os.FindProcess(pid)
		if err != nil {
			return err
		}
		if inContainer(pid, podUID, container) {
			err = process.Signal(syscall.SIGKILL)
			killed++
		}
		if err := errors.Join(err, process.Release()); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	if killed == 0 {
		return errors.New("no process of it was found")
	}
	return nil
}

// inContainer reports whether a process is in the cgroup ".../pod<UID>/<container>".
func inContainer(pid int, podUID, container string) bool {
	cgroups, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(cgroups)) {
		if strings.HasSuffix(strings.TrimSpace(line), "/pod"+podUID+"/"+container) {
			return true
		}
	}
	return false
}

// awaitGone waits until a Pod does not exist, or another one has its name.
func awaitGone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	eventually(t, time.Minute, "Pod "+pod.Name+" is gone", func(ctx context.Context) error {
		now, err := node.Host.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.UID == pod.UID {
			return errors.New("it is still there")
		}
		return nil
	})
}
