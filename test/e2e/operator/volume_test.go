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

// All volumes are lost, one after the other: whatever is still there at the end was copied to each that came new, objects
// by etcd and events, undelivered ones too, by the streams. No hand is laid on anything else.
func TestLostVolumes(t *testing.T) {
	s := setUp(t)
	l := startLoad(t, s, true)
	// Nobody answers there, so that these events stay until all volumes have been replaced.
	kept := holdEvents(t, s)
	for i := range replicas {
		started := time.Now()
		loseVolume(t, fmt.Sprintf("%s-%d", harness.ServerName, i))
		awaitWhole(t)
		t.Logf("replica %d is whole again after %s", i, time.Since(started).Round(100*time.Millisecond))
	}
	l.stop(t)
	l.mustHaveGoneOn(t)
	kept.release(t)
}

// loseVolume deletes a replica's volume and, without time to say goodbye, the replica.
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
	// It goes when no Pod uses it any more.
	if err := claims.Delete(t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err = node.Host.CoreV1().Pods(pod.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
	if err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pod)
	eventually(t, recovery, "the volume is another one", func(ctx context.Context) error {
		now, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.UID == claim.UID {
			return fmt.Errorf("volume claim %s is still there", claim.Name)
		}
		return nil
	})
}
