package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// outage is the longest that a call may take, with all its attempts, while a replica that was killed is not yet known to be gone:
// its Lease lasts 6 seconds, that of the leader 8, and etcd elects within a few.
const outage = 15 * time.Second

// The leader's role, its share of brokers and its member of etcd are taken over; it comes back by itself.
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
			eventually(t, recovery, "somebody leads", func(ctx context.Context) error {
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

// pick returns a replica that leads, or one that does not, and who leads.
func pick(t *testing.T, leading bool) (pod *corev1.Pod, leads string) {
	t.Helper()
	eventually(t, time.Minute, "there is a victim", func(ctx context.Context) error {
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
			return fmt.Errorf("%s leads, which is none of the Pods", leads)
		}
		pod = &pods[i]
		return nil
	})
	return pod, leads
}

// mustHaveGoneOn fails the test if a client that tries again had to do so for long.
func (l *load) mustHaveGoneOn(t *testing.T) {
	t.Helper()
	all := []*activity{&l.requests, &l.events}
	if l.api != nil {
		all = append(all, &l.api.writes, &l.api.reads)
	}
	for _, a := range all {
		if slowest := a.worst(); slowest > outage {
			t.Errorf("%s: one took %s until it succeeded, more than %s", a.name, slowest, outage)
		}
	}
}

// The kubelet starts containers of applications again. Until it has, the gateway sends to those that are left: what was not
// yet answered fails, and nothing else.
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
		// The one that was restarted least, so that both are killed once.
		victim := slices.MinFunc(pods.Items, func(a, b corev1.Pod) int {
			return int(a.Status.ContainerStatuses[0].RestartCount - b.Status.ContainerStatuses[0].RestartCount)
		})
		kill(t, &victim)
	}
	l.stop(t)
	l.mustHaveGoneOn(t)
	l.events.mustNotHaveFailed(t)
	// At most what was on its way to each of the two containers, from all clients.
	if failed := l.requests.attemptsFailed(); failed > 2*requestClients {
		t.Errorf("%d requests failed, though there was always another instance", failed)
	}
}
