package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// outage is the maximum time of a call with all attempts until peers consider a killed replica dead: its Lease lasts 6 seconds,
// the leader's 8, and etcd elects a leader within a few.
func outage() time.Duration {
	if os.Getenv("MEASURE_AFTER") != "" {
		return 40 * time.Second // other tests run beside it
	}
	return 15 * time.Second
}

// TestKilledReplicas kills replicas: their leadership, their Brokers and their etcd membership are handed over, and they
// recover without intervention.
func TestKilledReplicas(t *testing.T) {
	s := setUp(t)
	for _, victim := range []struct {
		name    string
		leading bool
	}{{"a follower", false}, {"the leader", true}} {
		t.Run(victim.name, func(t *testing.T) {
			awaitWhole(t)
			pod, former := pick(t, victim.leading)
			l := startLoad(t, s, true)
			kill(t, pod)
			eventually(t, recovery, "a replica leads", func(ctx context.Context) error {
				_, err := leader(ctx)
				return err
			})
			awaitWhole(t)
			l.stop(t)
			l.mustHaveGoneOn(t)
			t.Logf("killed %s; %s led", pod.Name, former)
		})
	}
}

// pick returns a replica that leads or follows, and the leader.
func pick(t *testing.T, leading bool) (pod *corev1.Pod, leads string) {
	t.Helper()
	eventually(t, patience, "a victim is found", func(ctx context.Context) error {
		var err error
		if leads, err = leader(ctx); err != nil {
			return err
		}
		pods, err := node.ServerPods(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return (p.Name == leads) == leading })
		if i < 0 {
			return fmt.Errorf("%s leads, which is not one of the Pods", leads)
		}
		pod = &pods[i]
		return nil
	})
	return pod, leads
}

// mustHaveGoneOn fails the test if a retrying client had to retry for too long.
func (l *load) mustHaveGoneOn(t *testing.T) {
	t.Helper()
	all := []*activity{&l.requests, &l.events}
	if l.api != nil {
		all = append(all, &l.api.writes, &l.api.reads)
	}
	for _, a := range all {
		if slowest := a.worst(); slowest > outage() {
			t.Errorf("%s: one took %s until it succeeded, more than %s", a.name, slowest, outage())
		}
	}
}

// TestKilledContainers kills containers of applications. Until the kubelet restarts them, the gateway sends requests to the
// others: only requests in flight fail.
func TestKilledContainers(t *testing.T) {
	s := setUp(t)
	l := startLoad(t, s, false)
	for range 2 {
		pods, err := node.Host.CoreV1().Pods(s.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + appName})
		if err != nil {
			t.Fatal(err)
		}
		if len(pods.Items) == 0 {
			t.Fatal(errors.New("the Service has no Pods"))
		}
		// The container with the fewest restarts, so that both are killed once.
		victim := slices.MinFunc(pods.Items, func(a, b corev1.Pod) int {
			return int(a.Status.ContainerStatuses[0].RestartCount - b.Status.ContainerStatuses[0].RestartCount)
		})
		kill(t, &victim)
	}
	l.stop(t)
	l.mustHaveGoneOn(t)
	l.events.mustNotHaveFailed(t)
	// At most the requests in flight to each of the two containers, from all clients.
	if failed := l.requests.attemptsFailed(); failed > 2*requestClients {
		t.Errorf("%d requests failed, although another instance was always available", failed)
	}
}
