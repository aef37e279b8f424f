package aggregated

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestQuota checks that a quota limits the number of Services and Brokers in a namespace, and that deletion frees it (P16).
func TestQuota(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "quota", nil)
	const services, brokers = "count/services.serving.knative.dev", "count/brokers.eventing.knative.dev"
	quotas := host.Host.CoreV1().ResourceQuotas(ns)
	_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "knative"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{services: resource.MustParse("2"), brokers: resource.MustParse("1")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	used := func(want map[corev1.ResourceName]int64) {
		t.Helper()
		within(t, rediscovery, fmt.Sprintf("the quota shows %v", want), func() error {
			quota, err := quotas.Get(t.Context(), "knative", metav1.GetOptions{})
			if err != nil {
				return err
			}
			for name, n := range want {
				if got, ok := quota.Status.Used[name]; !ok || got.Value() != n {
					return fmt.Errorf("it shows %v", quota.Status.Used)
				}
			}
			return nil
		})
	}
	used(map[corev1.ResourceName]int64{services: 0, brokers: 0})

	service := harness.KindOf("Service")
	mustCreate(t, service.Object(ns, "one"))
	mustCreate(t, service.Object(ns, "two"))
	mustCreate(t, harness.KindOf("Broker").Object(ns, "one"))
	mustCreate(t, harness.KindOf("Configuration").Object(ns, "free"))
	used(map[corev1.ResourceName]int64{services: 2, brokers: 1})

	// refused waits until the quota refuses to create an object. The host's quota controller may count before it has seen the latest
	// objects, and the server may not have read the latest count.
	refused := func(create func(testing.TB, *harness.Clients, *unstructured.Unstructured, ...string) *harness.Response, obj *unstructured.Unstructured, want string) {
		t.Helper()
		within(t, rediscovery, "the quota refuses the "+obj.GetKind(), func() error {
			switch response := create(t, host.Admin, obj); {
			case response.Code == http.StatusCreated:
				wantCode(t, remove(t, host.Admin, obj), http.StatusOK)
				return errors.New("it was created")
			case response.Code != http.StatusForbidden || !strings.Contains(string(response.Body), want):
				return fmt.Errorf("code %d, want 403 with %q: %.2000s", response.Code, want, response.Body)
			}
			return nil
		})
	}
	three := service.Object(ns, "three")
	for _, create := range []func(testing.TB, *harness.Clients, *unstructured.Unstructured, ...string) *harness.Response{post, put, apply} {
		refused(create, three, "exceeded quota: knative, requested: "+services+"=1, used: "+services+"=2, limited: "+services+"=2")
	}
	refused(post, harness.KindOf("Broker").Object(ns, "two"), "exceeded quota: knative, requested: "+brokers+"=1")

	wantCode(t, remove(t, host.Admin, service.Object(ns, "one")), http.StatusOK)
	within(t, rediscovery, "the deletion frees the quota", func() error {
		if response := post(t, host.Admin, three); response.Code != http.StatusCreated {
			return fmt.Errorf("code %d: %.2000s", response.Code, response.Body)
		}
		return nil
	})
	used(map[corev1.ResourceName]int64{services: 2})
}
