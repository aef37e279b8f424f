package noloss

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// drainTimeout is the time for which kubectl tries to evict Pods that no other node can run.
const drainTimeout = 30 * time.Second

// TestNodeDrain drains the only node. All Pods of Services are evicted; requests wait for new Pods, which start when the node
// is schedulable again. The PodDisruptionBudget of the server allows one eviction of its Pods, so that the drain does not
// complete while the others serve.
func TestNodeDrain(t *testing.T) {
	s := newStage(t, instances, 0)
	s.awaitServer(t)
	before := s.awaitPods(t, 1, instances)
	nodes, err := s.Host.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("there must be one node: %v", err)
	}
	node := nodes.Items[0].Name
	l := s.startLoad(t, clients)
	l.long(t, 2*instances)

	uncordon := func(ctx context.Context) error {
		_, err := s.Host.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(`{"spec": {"unschedulable": null}}`), metav1.PatchOptions{})
		return err
	}
	defer func() {
		if err := uncordon(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	drain := harness.NewKubectl(t, s.Kubeconfig, "").Run(t, "", "drain", node,
		"--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout="+drainTimeout.String())
	t.Logf("kubectl drain: exit code %d", drain.Code)
	eventually(t, "the Pods of the Service are deleted", func(ctx context.Context) error {
		pods, err := s.pods(ctx, 1)
		if err != nil {
			return err
		}
		for i := range pods {
			if podIn(&pods[i], before) {
				return fmt.Errorf("%s still exists", pods[i].Name)
			}
		}
		return nil
	})
	eventually(t, "the drain has left two replicas", func(ctx context.Context) error { return s.serverRuns(ctx, 2) })
	if err := uncordon(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.awaitPods(t, 1, instances, before...)
	l.awaitMore(t)
	l.end(t)
	s.awaitServer(t)
}

// awaitServer waits until all Pods of the server are ready.
func (s *stage) awaitServer(t *testing.T) {
	t.Helper()
	eventually(t, "all replicas of the server are ready", func(ctx context.Context) error { return s.serverRuns(ctx, 3) })
}

// serverRuns reports whether that many Pods with the API and that many with a gateway are ready.
func (s *stage) serverRuns(ctx context.Context, least int) error {
	for what, list := range map[string]func(context.Context) ([]corev1.Pod, error){"the server": s.ServerPods, "the gateway": s.GatewayPods} {
		pods, err := list(ctx)
		if err != nil {
			return err
		}
		ready := 0
		for i := range pods {
			if p := &pods[i]; p.Status.Phase == corev1.PodRunning && podReady(p) && p.DeletionTimestamp == nil {
				ready++
			}
		}
		if ready < least {
			return fmt.Errorf("%d replicas of %s are ready, of at least %d", ready, what, least)
		}
	}
	return nil
}
