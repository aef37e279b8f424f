package aggregated

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// family is a Service that owns a Configuration, which owns a Revision, as the controllers create them.
func family(t *testing.T, ns string) (service, configuration, revision *unstructured.Unstructured) {
	t.Helper()
	service = mustCreate(t, harness.KindOf("Service").Object(ns, "owner"))
	configuration = mustCreate(t, ownedBy(harness.KindOf("Configuration").Object(ns, "owner"), ownerReference(service)))
	revision = mustCreate(t, ownedBy(harness.KindOf("Revision").Object(ns, "owner-00001"), ownerReference(configuration)))
	collected(t, ns, "Configuration")
	collected(t, ns, "Revision")
	return service, configuration, revision
}

// collected waits until the garbage collector has observed all objects of a kind: it deletes an object that is created last and
// whose owner never existed. Orphaning keeps only dependents that the collector has observed, and it watches each kind
// separately, possibly with a delay after a restart of the server.
func collected(t *testing.T, ns, kind string) {
	t.Helper()
	absent := harness.KindOf("Service").Object(ns, "absent")
	absent.SetUID("00000000-0000-0000-0000-000000000000")
	gone(t, mustCreate(t, ownedBy(harness.KindOf(kind).Object(ns, "absent-00001"), ownerReference(absent))))
}

// gone waits until an object does not exist.
func gone(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	within(t, rediscovery, fmt.Sprintf("%s %s is deleted", obj.GetKind(), obj.GetName()), func() error {
		response := get(t, host.Admin, obj)
		if response.Code == http.StatusNotFound {
			return nil
		}
		return fmt.Errorf("code %d: %.1000s", response.Code, response.Body)
	})
}

// disowned waits until an object has no owners.
func disowned(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	within(t, rediscovery, fmt.Sprintf("%s %s has no owner", obj.GetKind(), obj.GetName()), func() error {
		if owners := get(t, host.Admin, obj).Object(t).GetOwnerReferences(); len(owners) > 0 {
			return fmt.Errorf("it has %v", owners)
		}
		return nil
	})
}

// TestDeleteBackground checks that the host's garbage collector deletes dependents after their owner (P17).
func TestDeleteBackground(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "background", nil)
	service, configuration, revision := family(t, ns)
	kubectl(t, ns).Must(t, "", "delete", "ksvc", "owner", "--cascade=background", "--wait=false")
	wantStatus(t, get(t, host.Admin, service), http.StatusNotFound, metav1.StatusReasonNotFound)
	gone(t, configuration)
	gone(t, revision)
}

// TestDeleteForeground checks that an owner is kept until its dependents are deleted (P17).
func TestDeleteForeground(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "foreground", nil)
	service, configuration, revision := family(t, ns)
	hold(t, revision)
	kubectl(t, ns).Must(t, "", "delete", "ksvc", "owner", "--cascade=foreground", "--wait=false")
	within(t, rediscovery, "the Revision is being deleted", func() error {
		if get(t, host.Admin, revision).Object(t).GetDeletionTimestamp() == nil {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	for _, obj := range []*unstructured.Unstructured{service, configuration} {
		owner := get(t, host.Admin, obj).Object(t)
		if owner.GetDeletionTimestamp() == nil || !slices.Contains(owner.GetFinalizers(), metav1.FinalizerDeleteDependents) {
			t.Errorf("%s must wait for the Revision, but has finalizers %v", obj.GetKind(), owner.GetFinalizers())
		}
	}
	release(t, revision)
	gone(t, revision)
	gone(t, configuration)
	gone(t, service)
}

// TestDeleteOrphan checks that orphaned dependents stay, without the owner reference (P17).
func TestDeleteOrphan(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "orphan", nil)
	service, configuration, revision := family(t, ns)
	kubectl(t, ns).Must(t, "", "delete", "ksvc", "owner", "--cascade=orphan", "--wait=false")
	disowned(t, configuration)
	gone(t, service)
	if owners := get(t, host.Admin, revision).Object(t).GetOwnerReferences(); len(owners) != 1 {
		t.Errorf("the Revision must keep its owner, but has %v", owners)
	}
}

const finalizer = "example.com/hold"

// hold adds a finalizer to an object.
func hold(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	wantCode(t, patch(t, host.Admin, pathOf(obj), fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, finalizer)), http.StatusOK)
}

func release(t *testing.T, obj *unstructured.Unstructured) {
	t.Helper()
	body := fmt.Sprintf(`[{"op":"test","path":"/metadata/finalizers/0","value":%q},{"op":"remove","path":"/metadata/finalizers/0"}]`, finalizer)
	response := do(t, host.Admin, harness.Request{Method: http.MethodPatch, Path: pathOf(obj), Body: body, ContentType: "application/json-patch+json"})
	wantCode(t, response, http.StatusOK)
}

// TestDeleteAcrossServers follows owner references from objects of the host to objects of this server and back (P17).
func TestDeleteAcrossServers(t *testing.T) {
	t.Parallel()
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			ns := host.Namespace(t, "across", nil)
			configMaps := host.Host.CoreV1().ConfigMaps(ns)
			create := func(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
				t.Helper()
				created, err := configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return created
			}
			// A ConfigMap of the host owns a Configuration; a Service owns a ConfigMap of the host.
			above := create("above")
			owned := mustCreate(t, ownedBy(harness.KindOf("Configuration").Object(ns, "owned"),
				*metav1.NewControllerRef(above, corev1.SchemeGroupVersion.WithKind("ConfigMap"))))
			service := mustCreate(t, harness.KindOf("Service").Object(ns, "owner"))
			create("below", ownerReference(service))
			collected(t, ns, "Configuration")

			wantCode(t, remove(t, host.Admin, service, "propagationPolicy="+string(policy)), http.StatusOK)
			if err := configMaps.Delete(t.Context(), "above", metav1.DeleteOptions{PropagationPolicy: &policy}); err != nil {
				t.Fatal(err)
			}
			gone(t, service)
			within(t, rediscovery, "the owning ConfigMap is deleted", func() error {
				_, err := configMaps.Get(t.Context(), "above", metav1.GetOptions{})
				return wantNotFound(err)
			})
			if policy == metav1.DeletePropagationOrphan {
				disowned(t, owned)
				below, err := configMaps.Get(t.Context(), "below", metav1.GetOptions{})
				if err != nil || len(below.OwnerReferences) > 0 {
					t.Errorf("the owned ConfigMap must stay, without owner: %v, %v", below, err)
				}
				return
			}
			gone(t, owned)
			within(t, rediscovery, "the owned ConfigMap is deleted", func() error {
				_, err := configMaps.Get(t.Context(), "below", metav1.GetOptions{})
				return wantNotFound(err)
			})
		})
	}
}

// wantNotFound returns an error unless err reports that an object does not exist.
func wantNotFound(err error) error {
	switch {
	case err == nil:
		return errors.New("it is there")
	case apierrors.IsNotFound(err):
		return nil
	default:
		return err
	}
}
