// Package operator tests failures and maintenance on a cluster with a node and the *default* installation: replicas killed,
// their volumes lost, containers killed, the host API server down, upgrades, rotations of certificates. Requests, events and
// API calls continue meanwhile, and nothing that was acknowledged may be lost. The package runs alone, because it disrupts the
// whole installation.
package operator

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var (
	// node is the cluster under test, nil without one.
	node *harness.Node
	// namespaces are the created namespaces, which are deleted at the end.
	namespaces []string
)

func TestMain(m *testing.M) {
	var err error
	if node, err = harness.OpenNode(); err != nil && !errors.Is(err, harness.ErrNoNode) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	for _, name := range namespaces {
		err := node.Host.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	cancel()
	os.Exit(code)
}

// newNamespace returns a namespace that lasts until all tests have ended.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace, err := node.Host.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "operator-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespaces = append(namespaces, namespace.Name)
	return namespace.Name
}

// eventually calls probe until it succeeds, for at most limit.
func eventually(t *testing.T, limit time.Duration, what string, probe func(context.Context) error) {
	t.Helper()
	harness.EventuallyWithin(t, limit, what, probe)
}

// pass waits under load, with its own timeout.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
