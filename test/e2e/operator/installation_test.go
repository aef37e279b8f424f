package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	replicas = 3
	// recovery is the timeout for the recovery of an installation.
	recovery = 3 * time.Minute
)

// awaitWhole waits until all replicas are ready, etcd has as many voting members and a leader, and the host serves the API. A
// ready replica has all its streams.
func awaitWhole(t *testing.T) {
	t.Helper()
	eventually(t, recovery, "the installation is whole", func(ctx context.Context) error {
		set, err := statefulSet(ctx)
		if err != nil {
			return err
		}
		if s := set.Status; *set.Spec.Replicas != replicas || s.ObservedGeneration != set.Generation ||
			s.Replicas != replicas || s.ReadyReplicas != replicas || s.UpdatedReplicas != replicas {
			return fmt.Errorf("the StatefulSet has %d replicas, %d ready and %d as they should be", s.Replicas, s.ReadyReplicas, s.UpdatedReplicas)
		}
		pods, err := node.ServerPods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			if err := isMember(ctx, &pods[i]); err != nil {
				return fmt.Errorf("%s: %w", pods[i].Name, err)
			}
		}
		_, err = node.Admin.Knative.ServingV1().Services("default").List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

func statefulSet(ctx context.Context) (*appsv1.StatefulSet, error) {
	return node.Host.AppsV1().StatefulSets(harness.SystemNamespace).Get(ctx, harness.ServerName, metav1.GetOptions{})
}

// leader returns the Pod that leads, by its Lease, whose holder is "<pod>@<address>".
func leader(ctx context.Context) (string, error) {
	lease, err := node.Host.CoordinationV1().Leases(harness.SystemNamespace).Get(ctx, "knative-apiserver-leader", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		return "", fmt.Errorf("no replica leads")
	}
	pod, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "@")
	return pod, nil
}

// isMember returns an error unless a replica is a member of a complete etcd cluster with a leader.
func isMember(ctx context.Context, pod *corev1.Pod) error {
	values, err := node.MetricsOf(ctx, pod)
	if err != nil {
		return err
	}
	if voters, leads := values["knative_etcd_voting_members"], values["knative_etcd_has_leader"]; voters != replicas || leads != 1 {
		return fmt.Errorf("etcd has %v voting members and %v leaders", voters, leads)
	}
	return nil
}

// restarts returns the number of container restarts by Pod of the replicas.
func restarts(t *testing.T) map[string]int32 {
	t.Helper()
	pods, err := node.ServerPods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int32{}
	for i := range pods {
		for j := range pods[i].Status.ContainerStatuses {
			counts[pods[i].Name] += pods[i].Status.ContainerStatuses[j].RestartCount
		}
	}
	return counts
}
