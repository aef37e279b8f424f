package aggregated

import (
	stdcontext "context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// fill creates n objects in a namespace, of all kinds in turn.
func fill(t *testing.T, ns string, n int) {
	t.Helper()
	kinds, manager := harness.AllKinds(), controllers(t)
	for i := range n {
		kind := kinds[i%len(kinds)]
		creator := host.Admin
		if kind.Kind == "Revision" {
			creator = manager
		}
		wantCode(t, post(t, creator, kind.Object(ns, fmt.Sprintf("object-%d", i))), http.StatusCreated)
	}
}

func deleteNamespace(t *testing.T, ns string) {
	t.Helper()
	if err := host.Host.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func namespaceGone(t *testing.T, ns string) {
	t.Helper()
	within(t, rediscovery, "the namespace is deleted", func() error {
		namespace, err := host.Host.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("it is %s: %+v", namespace.Status.Phase, namespace.Status.Conditions)
		}
		return wantNotFound(err)
	})
	for _, kind := range harness.AllKinds() {
		list, err := host.Admin.Dynamic.Resource(kind.GVR()).Namespace(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) > 0 {
			t.Errorf("%d %s remain, %v", len(list.Items), kind.Resource, err)
		}
	}
}

// TestNamespaceDeletion checks that the host's controller deletes a namespace with 200 objects of this server (P1).
func TestNamespaceDeletion(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "full", nil)
	fill(t, ns, 200)
	deleteNamespace(t, ns)
	namespaceGone(t, ns)
}

// TestNamespaceDeletionWhileDown deletes a namespace while the server is down: the host reports the reason for the delay, and
// continues once the server is up (P1).
func TestNamespaceDeletionWhileDown(t *testing.T) {
	host.StartAfter(t)
	ns := host.Namespace(t, "down", nil)
	fill(t, ns, 16)
	host.Server.Kill()
	deleteNamespace(t, ns)
	within(t, rediscovery, "the host reports the reason for the delay", func() error {
		namespace, err := host.Host.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(namespace.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Status == corev1.ConditionTrue && (strings.Contains(c.Message, "knative.dev") || c.Type == corev1.NamespaceDeletionDiscoveryFailure)
		}) {
			return fmt.Errorf("its conditions are %+v", namespace.Status.Conditions)
		}
		return nil
	})
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	namespaceGone(t, ns)
}

// TestRestartIdentity sends requests through the aggregator while the server restarts: until it has the CA of the front proxy,
// it may be unavailable, but must not treat users as anonymous (P11).
func TestRestartIdentity(t *testing.T) {
	host.Server.Kill()
	ctx, cancel := stdcontext.WithCancel(t.Context())
	wrong := make(chan string, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			response, err := host.Admin.Send(ctx, harness.Request{Method: http.MethodGet, Path: harness.KindOf("Service").Collection("")})
			if err == nil && (response.Code == http.StatusForbidden || response.Code == http.StatusUnauthorized) {
				select {
				case wrong <- fmt.Sprintf("code %d: %s", response.Code, response.Body):
				default:
				}
			}
		}
	}()
	err := host.Start()
	cancel()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	select {
	case answer := <-wrong:
		t.Errorf("the administrator was refused while the server started: %s", answer)
	default:
	}
}
