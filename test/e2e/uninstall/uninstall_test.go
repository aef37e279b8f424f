// Package uninstall tests that the server is removed without residue, and so the installation that the other tests of test/e2e
// need. It runs last, and only with E2E_UNINSTALL=1.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// partOf selects all installed objects.
const partOf = "app.kubernetes.io/part-of=knative-apiserver"

// TestUninstall runs the README's command with namespaces that have objects of all kinds, one of them being deleted at the
// time: no namespace is stuck, then or later, and the workloads of the objects are deleted.
func TestUninstall(t *testing.T) {
	node := harness.NodeFor(t)
	if os.Getenv("E2E_UNINSTALL") != "1" {
		t.Skip("E2E_UNINSTALL=1 is not set, and other tests need the installation")
	}
	namespaces := node.Host.CoreV1().Namespaces()
	kept, going := fill(t, node), fill(t, node)
	if err := namespaces.Delete(t.Context(), going, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := node.Script(ctx, "uninstall.sh"); err != nil {
		t.Fatal(err)
	}

	if err := namespaces.Delete(t.Context(), kept, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The namespace controller waits for minutes if a Pod needs longer to end.
	ctx, cancel = context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err := harness.Poll(ctx, func() error {
		list, err := namespaces.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if n := &list.Items[i]; n.DeletionTimestamp != nil {
				return fmt.Errorf("namespace %s is stuck: %v", n.Name, n.Status.Conditions)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := namespaces.Get(t.Context(), harness.SystemNamespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("namespace %s still exists (%v)", harness.SystemNamespace, err)
	}
	nothingIsLeft(t, node)
}

// fill creates a namespace with objects of all kinds that users create, including a Service with a backend.
func fill(t *testing.T, node *harness.Node) string {
	t.Helper()
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := node.Host.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "uninstall-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range harness.Kinds() {
		if kind.Kind == "Revision" {
			continue
		}
		u := kind.Object(namespace.Name, "left-"+kind.Resource)
		if kind.Kind == "Service" {
			u.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"image": image}}}}}
		}
		if _, err := node.Admin.Dynamic.Resource(kind.GVR()).Namespace(namespace.Name).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, "the Service has a Deployment", func() error {
		list, err := node.Host.AppsV1().Deployments(namespace.Name).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("none exists")
		}
		return err
	})
	return namespace.Name
}

// nothingIsLeft looks for installed objects and for workloads of Knative objects, among all kinds that the host still serves.
func nothingIsLeft(t *testing.T, node *harness.Node) {
	t.Helper()
	var resources []*metav1.APIResourceList
	// The host removes a group from its discovery shortly after the registration.
	harness.Eventually(t, "no API group of Knative is served", func() (err error) {
		if resources, err = node.Host.Discovery().ServerPreferredResources(); err != nil {
			return err
		}
		for _, list := range resources {
			if group, _, _ := strings.Cut(list.GroupVersion, "/"); strings.HasSuffix(group, ".knative.dev") {
				return fmt.Errorf("API group %s is still served", list.GroupVersion)
			}
		}
		return nil
	})
	for _, list := range resources {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") {
				continue
			}
			client := node.Admin.Dynamic.Resource(version.WithResource(r.Name))
			harness.Eventually(t, "no "+r.Name+" are left", func() error { return noneLeft(t.Context(), client) })
		}
	}
}

// lister is the part of a client that noneLeft needs.
type lister interface {
	List(ctx context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error)
}

// noneLeft returns an error for an object that was installed or that belongs to a Knative object.
func noneLeft(ctx context.Context, client lister) error {
	installed, err := client.List(ctx, metav1.ListOptions{LabelSelector: partOf})
	if err != nil {
		return err
	}
	if len(installed.Items) > 0 {
		return fmt.Errorf("%d were installed, such as %s", len(installed.Items), installed.Items[0].GetName())
	}
	all, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		for _, owner := range all.Items[i].GetOwnerReferences() {
			if strings.Contains(owner.APIVersion, ".knative.dev/") {
				return fmt.Errorf("%s/%s belongs to %s %s", all.Items[i].GetNamespace(), all.Items[i].GetName(), owner.Kind, owner.Name)
			}
		}
	}
	return nil
}
