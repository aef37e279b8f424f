package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	// recovery is the timeout for the recovery of an installation.
	recovery = 5 * time.Minute
	// patience is the timeout of a step on a busy machine, such as the start of a Pod.
	patience = 3 * time.Minute
)

// awaitWhole waits until all replicas and gateways are ready, etcd has as many voting members and a leader, and the host serves the API. A
// ready replica has all its streams.
func awaitWhole(t *testing.T) {
	t.Helper()
	eventually(t, recovery, "the installation is complete", node.Whole)
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
