package eventing

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestArchive reads the ConfigMap of a Broker from the host, in the Broker's namespace and the system namespace only, and reads it again after
// a change.
func TestArchive(t *testing.T) {
	t.Parallel()
	ns, other := host.Namespace(t, "archive", nil), host.Namespace(t, "other", nil)
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "orders"}, Data: map[string]string{settings.KeyArchiveRetention: "24h"}}
	for _, namespace := range []string{ns, other} {
		if _, err := host.Host.CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	brokers := host.Admin.Knative.EventingV1().Brokers(ns)
	for _, namespace := range []string{ns, other} {
		b := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: "of-" + namespace}}
		b.Spec.Config = &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: "orders"}
		if _, err := brokers.Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(name string, want corev1.ConditionStatus, reason string) {
		t.Helper()
		// A change is observed after a minute.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		if err := harness.Poll(ctx, func() error {
			b, err := brokers.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if ready := b.Status.Conditions.Get(duckv1.ConditionReady); ready == nil || ready.Status != corev1.ConditionTrue {
				return fmt.Errorf("conditions %+v", b.Status.Conditions)
			}
			got := duckv1.Condition{}
			if c := b.Status.Conditions.Get("ArchiveReady"); c != nil {
				got = *c
			}
			if got.Status != want || got.Reason != reason {
				return fmt.Errorf("the condition is %+v", got)
			}
			return nil
		}); err != nil {
			t.Fatalf("Broker %s, wanted condition '%s' '%s': %v", name, want, reason, err)
		}
	}
	expect("of-"+ns, corev1.ConditionTrue, "")
	expect("of-"+other, "", "")
	configMap.Data[settings.KeyArchiveRetention] = "1000h"
	if _, err := host.Host.CoreV1().ConfigMaps(ns).Update(t.Context(), configMap, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("of-"+ns, corev1.ConditionTrue, "ArchiveLimited")
}
