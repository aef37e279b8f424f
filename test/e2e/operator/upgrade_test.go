package operator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// otherLayout is the variant that differs from the default in where the gateway runs, and separate reports whether it runs in Pods of its own
// by default.
const (
	otherLayout = "combined"
	separate    = true
)

// shortWaits is a kustomization.yaml that builds on a variant and shortens the waits of its Pods, so that the test is short.
const shortWaits = `
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
patches:
- target: {kind: StatefulSet|Deployment, name: knative-.*}
  patch: |-
    - {op: replace, path: /spec/minReadySeconds, value: 1}
`

// TestUpgrade moves the gateway to the other layout, and back with the README's command, which replaces every replica: no request, event
// or API call fails. One of the moves is an upgrade too.
func TestUpgrade(t *testing.T) {
	s := setUp(t)
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	variant, err := filepath.Rel(dir, filepath.Join(root, "artifacts", "install", otherLayout))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, shortWaits, variant), 0o600); err != nil {
		t.Fatal(err)
	}
	// The image changes with the move to combined: the other one would replace all replicas twice.
	first, image := currentImage(t), nextImage(t)
	if separate {
		first = image
	}
	checkGateways(t, separate)
	l := startSteadyLoad(t, s, true)
	started := time.Now()
	// After a failure, the tests that follow need the default nevertheless.
	if err := node.Script(t.Context(), "install.sh", first, dir); err != nil {
		t.Error(err)
	} else {
		t.Logf("moved the gateway in %s", time.Since(started).Round(time.Second))
		checkGateways(t, !separate)
	}

	started = time.Now()
	if err := node.Script(t.Context(), "install.sh", image); err != nil {
		t.Fatal(err)
	}
	t.Logf("upgraded in %s", time.Since(started).Round(time.Second))
	awaitWhole(t)
	checkGateways(t, separate)
	pods, err := node.ServerPods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if got := pods[i].Spec.Containers[0].Image; got != image {
			t.Errorf("Pod %s still has the image %s", pods[i].Name, got)
		}
	}
	l.stop(t)
	l.requests.mustNotHaveFailed(t)
	l.events.mustNotHaveFailed(t)
	l.api.mustNotHaveFailed(t)
}

// checkGateways checks that requests are served by three Pods, which run nothing else if alone is true, and that nothing remains of
// the other layout.
func checkGateways(t *testing.T, alone bool) {
	t.Helper()
	eventually(t, recovery, "requests are served by Pods of one layout", func(ctx context.Context) error {
		pods, err := node.GatewayPods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			if (pods[i].Labels["app.kubernetes.io/component"] == "gateway") != alone {
				return fmt.Errorf("requests are served by Pod %s", pods[i].Name)
			}
		}
		if len(pods) != harness.Replicas {
			return fmt.Errorf("%d Pods serve requests", len(pods))
		}
		_, err = node.Host.CoreV1().ServiceAccounts(harness.SystemNamespace).Get(ctx, "knative-gateway", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if exists := err == nil; exists != alone {
			return fmt.Errorf("the ServiceAccount of gateways exists: %t", exists)
		}
		return nil
	})
}

// currentImage returns the reference of the server's image.
func currentImage(t *testing.T) string {
	t.Helper()
	set, err := statefulSet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return set.Spec.Template.Spec.Containers[0].Image
}

// nextImage tags the server's image with another name, which makes it a different image.
func nextImage(t *testing.T) string {
	t.Helper()
	current, err := name.ParseReference(currentImage(t), name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	descriptor, err := remote.Get(current, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	next := current.Context().Tag("upgrade-" + time.Now().UTC().Format("20060102-150405"))
	if err := remote.Tag(next, descriptor, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	return next.Name()
}
