package noloss

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const instances = 2

// TestPodsTerminate terminates Pods of a Service in the ways of users and of the cluster. Long requests that are in flight
// complete as well (serving 7.3).
func TestPodsTerminate(t *testing.T) {
	t.Parallel()
	for title, remove := range map[string]func(t *testing.T, s *stage, pods []corev1.Pod){
		"one is deleted":            deleteOne,
		"all are deleted":           deleteAll,
		"one is evicted":            evictOne,
		"the Deployment is deleted": deleteDeployment,
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, instances, 0)
			before := s.awaitPods(t, 1, instances)
			l := s.startLoad(t, clients)
			l.long(t, 2*instances)
			remove(t, s, before)
			l.awaitMore(t)
			eventually(t, "other Pods exist", func(ctx context.Context) error { return s.replaced(ctx, before) })
			s.awaitPods(t, 1, instances)
			l.awaitMore(t)
			l.end(t)
		})
	}
}

// replaced reports whether a new Pod exists.
func (s *stage) replaced(ctx context.Context, before []corev1.Pod) error {
	pods, err := s.pods(ctx, 1)
	if err != nil {
		return err
	}
	for i := range pods {
		if !podIn(&pods[i], before) {
			return nil
		}
	}
	return fmt.Errorf("got the same %d as before", len(pods))
}

func podIn(p *corev1.Pod, all []corev1.Pod) bool {
	for i := range all {
		if all[i].UID == p.UID {
			return true
		}
	}
	return false
}

func deleteOne(t *testing.T, s *stage, pods []corev1.Pod) {
	t.Helper()
	s.kubectl(t, "delete", "pod", pods[0].Name)
}

func deleteAll(t *testing.T, s *stage, _ []corev1.Pod) {
	t.Helper()
	s.kubectl(t, "delete", "pod", "--all")
}

func deleteDeployment(t *testing.T, s *stage, _ []corev1.Pod) {
	t.Helper()
	s.kubectl(t, "delete", "deployment", revision(1)+"-deployment", "--wait=false")
}

func evictOne(t *testing.T, s *stage, pods []corev1.Pod) {
	t.Helper()
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: pods[0].Name}}
	if err := s.Host.PolicyV1().Evictions(s.namespace).Evict(t.Context(), eviction); err != nil {
		t.Fatal(err)
	}
}

// kubectl runs a command in the namespace.
func (s *stage) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	result := harness.NewKubectl(t, s.Kubeconfig, s.namespace).Run(t, "", args...)
	if result.Code != 0 {
		t.Fatalf("kubectl %q: %+v", args, result)
	}
	return result.Stdout
}
