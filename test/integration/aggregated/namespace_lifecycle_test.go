package aggregated

import (
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestNamespaceLifecycle creates objects in a namespace that does not exist, and in one that is being deleted (P18).
func TestNamespaceLifecycle(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "lifecycle", nil)
	configMaps := host.Host.CoreV1().ConfigMaps(ns)
	_, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{finalizer}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Host.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, err := configMaps.Patch(context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	for _, kind := range harness.AllKinds() {
		creator := host.Admin
		if kind.Kind == "Revision" {
			creator = controllers(t)
		}
		t.Run(kind.Kind, func(t *testing.T) {
			status := wantStatus(t, post(t, creator, kind.Object("does-not-exist", "one")), http.StatusNotFound, metav1.StatusReasonNotFound,
				`namespaces "does-not-exist" not found`)
			if status.Details == nil || status.Details.Kind != "namespaces" {
				t.Errorf("details %+v, want the details of the namespace", status.Details)
			}
			within(t, rediscovery, "the server observes the deletion of the namespace", func() error {
				if response := post(t, creator, kind.Object(ns, "one"), "dryRun=All"); response.Code != http.StatusForbidden {
					return fmt.Errorf("code %d: %.500s", response.Code, response.Body)
				}
				return nil
			})
			status = wantStatus(t, post(t, creator, kind.Object(ns, "one")), http.StatusForbidden, metav1.StatusReasonForbidden,
				"because it is being terminated")
			if status.Details == nil || len(status.Details.Causes) == 0 || status.Details.Causes[0].Type != corev1.NamespaceTerminatingCause {
				t.Errorf("details %+v, want the cause %s", status.Details, corev1.NamespaceTerminatingCause)
			}
		})
	}
}
