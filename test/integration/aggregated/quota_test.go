package aggregated

import (
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

	three := service.Object(ns, "three")
	for how, response := range map[string]*harness.Response{
		"POST": post(t, host.Admin, three), "PUT": put(t, host.Admin, three), "apply": apply(t, host.Admin, three),
	} {
		t.Run(how, func(t *testing.T) {
			wantForbidden(t, response, "exceeded quota: knative, requested: "+services+"=1, used: "+services+"=2, limited: "+services+"=2")
		})
	}
	wantForbidden(t, post(t, host.Admin, harness.KindOf("Broker").Object(ns, "two")), "exceeded quota: knative, requested: "+brokers+"=1")

	wantCode(t, remove(t, host.Admin, service.Object(ns, "one")), http.StatusOK)
	used(map[corev1.ResourceName]int64{services: 1})
	mustCreate(t, three)
	used(map[corev1.ResourceName]int64{services: 2})
}
