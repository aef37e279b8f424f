package failures

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestPlaceholder checks that core Services of a Route that users delete or edit are restored, that additions of users stay,
// and that they are deleted with their Route.
func TestPlaceholder(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	services := node.Host.CoreV1().Services(s.name)
	s.create("app")
	latest := s.ready("app").Status.LatestReadyRevisionName
	harness.Edit(t, s.services(), "app", func(service *servingv1.Service) {
		service.Spec.Traffic = []servingv1.TrafficTarget{{RevisionName: latest, Percent: ptr.To[int64](100), Tag: "v1"}}
	})
	var names []string
	for _, name := range []string{"app", "v1-app"} {
		names = append(names, name)
		var made *corev1.Service
		harness.Eventually(t, "core Service "+name+" exists", func() (err error) {
			made, err = services.Get(t.Context(), name, metav1.GetOptions{})
			return err
		})
		if owner := metav1.GetControllerOf(made); owner == nil || owner.Kind != "Route" || owner.Name != "app" {
			t.Errorf("core Service %s belongs to %v, want Route app", name, owner)
		}
		restored := func(what string, isAnother bool) {
			t.Helper()
			harness.Eventually(t, "core Service "+name+" is restored after it was "+what, func() error {
				now, err := services.Get(t.Context(), name, metav1.GetOptions{})
				switch {
				case err != nil:
					return err
				case isAnother && now.UID == made.UID:
					return errors.New("it is not deleted")
				case !equality.Semantic.DeepEqual(now.Spec, made.Spec), now.Labels["serving.knative.dev/route"] != "app", metav1.GetControllerOf(now) == nil:
					return errors.New("it is " + now.String())
				}
				return nil
			})
		}
		patch := func(patch string) {
			t.Helper()
			if _, err := services.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		patch(`{"metadata":{"annotations":{"theirs":"kept"}},"spec":{"externalName":"example.com"}}`)
		restored("edited", false)
		if now, err := services.Get(t.Context(), name, metav1.GetOptions{}); err != nil || now.Annotations["theirs"] != "kept" {
			t.Errorf("an added annotation was removed (%v)", err)
		}
		patch(`{"metadata":{"labels":{"serving.knative.dev/route":null}}}`)
		restored("unlabelled", false)
		patch(`{"metadata":{"ownerReferences":null}}`)
		harness.Eventually(t, "the orphaned core Service "+name+" is reported", func() error {
			route, err := s.serving().Routes(s.name).Get(t.Context(), "app", metav1.GetOptions{})
			if err != nil {
				return err
			}
			return isFalse(condition(route, &route.Status.Status, servingv1.RouteConditionIngressReady), notOwned, name)
		})
		if err := services.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		restored("deleted", true)
	}
	s.answers(s.get("app"), "Hello World!")
	if err := s.services().Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		harness.Eventually(t, "core Service "+name+" is gone", func() error {
			if _, err := services.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.Join(errors.New("it is there"), err)
			}
			return nil
		})
	}
}
