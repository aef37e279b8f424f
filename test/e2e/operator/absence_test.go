package operator

import (
	"context"
	"fmt"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestNamespaceDeletedWhileServerIsDown deletes a namespace while the server is down: it stays until the server is up, and is
// deleted then. Everything else is unchanged: objects and acknowledged events.
func TestNamespaceDeletedWhileServerIsDown(t *testing.T) {
	s := setUp(t)
	kept := holdEvents(t, s)
	namespace := fullNamespace(t)
	scale(t, 0)
	t.Cleanup(func() {
		if t.Failed() {
			_ = scaleTo(context.WithoutCancel(t.Context()), harness.Replicas) // the test has failed already
		}
	})
	eventually(t, recovery, "all replicas have stopped", func(ctx context.Context) error {
		pods, err := node.ServerPods(ctx)
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%d are left", len(pods))
		}
		return err
	})
	client := node.Host.CoreV1().Namespaces()
	if err := client.Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// No server serves its objects now, so it must stay.
	eventually(t, patience, "the namespace waits for the server", func(ctx context.Context) error {
		n, err := client.Get(ctx, namespace, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NamespaceDeletionDiscoveryFailure && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", n.Status.Conditions)
	})
	scale(t, harness.Replicas)
	awaitWhole(t)
	// The namespace controller retries about once a minute, and waits for the Pods.
	eventually(t, recovery, "the namespace is deleted", func(ctx context.Context) error {
		n, err := client.Get(ctx, namespace, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("its conditions are %v", n.Status.Conditions)
	})
	s.awaitReady(t, "Service", appName)
	kept.release(t)
	l := startLoad(t, s, true)
	l.stop(t)
}

// fullNamespace returns a namespace with objects of all kinds that users create.
func fullNamespace(t *testing.T) string {
	t.Helper()
	s := &stage{namespace: newNamespace(t)}
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	create(t, s.app(image))
	for _, kind := range harness.Kinds() {
		if kind.Kind == "Revision" || kind.Kind == "Service" {
			continue
		}
		for number := range 5 {
			create(t, kind.Object(s.namespace, fmt.Sprintf("%s-%d", kind.Resource, number)))
		}
	}
	s.awaitReady(t, "Service", appName)
	return s.namespace
}

// scale sets the number of replicas of the installation.
func scale(t *testing.T, number int32) {
	t.Helper()
	if err := scaleTo(t.Context(), number); err != nil {
		t.Fatal(err)
	}
}

func scaleTo(ctx context.Context, number int32) error {
	_, err := node.Host.AppsV1().StatefulSets(harness.SystemNamespace).UpdateScale(ctx, harness.ServerName, &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Name: harness.ServerName, Namespace: harness.SystemNamespace},
		Spec:       autoscalingv1.ScaleSpec{Replicas: number},
	}, metav1.UpdateOptions{})
	return err
}
