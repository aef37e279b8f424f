package operator

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestLostVolumes loses all volumes, one after the other: all data at the end was replicated to each new volume, objects by
// etcd and events, including undelivered ones, by the streams. No manual step is needed.
func TestLostVolumes(t *testing.T) {
	s := setUp(t)
	l := startLoad(t, s, true)
	// No server listens there, so these events stay until all volumes have been replaced.
	kept := holdEvents(t, s)
	for i := range harness.Replicas {
		started := time.Now()
		loseVolume(t, fmt.Sprintf("%s-%d", harness.ServerName, i))
		awaitWhole(t)
		t.Logf("replica %d is complete again after %s", i, time.Since(started).Round(100*time.Millisecond))
	}
	l.stop(t)
	l.mustHaveGoneOn(t)
	kept.release(t)
}

// loseVolume deletes a replica's volume and kills the replica.
func loseVolume(t *testing.T, name string) {
	t.Helper()
	pod, err := node.Host.CoreV1().Pods(harness.SystemNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claims := node.Host.CoreV1().PersistentVolumeClaims(harness.SystemNamespace)
	claim, err := claims.Get(t.Context(), "data-"+name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// It is deleted once no Pod uses it.
	if err := claims.Delete(t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err = node.Host.CoreV1().Pods(pod.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
	if err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pod)
	eventually(t, recovery, "the volume was replaced", func(ctx context.Context) error {
		now, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.UID == claim.UID {
			return fmt.Errorf("volume claim %s still exists", claim.Name)
		}
		return nil
	})
}
