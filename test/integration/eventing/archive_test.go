package eventing

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestArchive archives the events of a Broker while its ConfigMap asks for it: a change has an effect without a restart, and the server that
// was killed continues the archive. Wrong values and limits are in the condition, and do not make the Broker unready.
func TestArchive(t *testing.T) {
	ns, dir := namespace(), t.TempDir()
	s := start(t, dir, "--archive-max-retention=2h")
	configs := func() *kubernetes.Clientset {
		core, err := kubernetes.NewForConfigAndClient(s.Config, s.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		return core
	}
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders"}, Data: map[string]string{settings.KeyArchiveRetention: "1h"}}
	if _, err := configs().CoreV1().ConfigMaps(ns).Create(t.Context(), configMap, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	create(t, s.Knative.EventingV1().Brokers(ns), &eventingv1.Broker{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders"},
		Spec:       eventingv1.BrokerSpec{Config: &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: ns, Name: "orders"}},
	})
	expect := func(status corev1.ConditionStatus, reason string) string {
		t.Helper()
		return eventually(t, s.Knative.EventingV1().Brokers(ns), "orders", fmt.Sprintf("has the condition %s %s", status, reason), func(b *eventingv1.Broker) error {
			if err := condition(b, &b.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, ""); err != nil {
				return err
			}
			if c := b.Status.Conditions.Get("ArchiveReady"); status == "" && c != nil {
				return fmt.Errorf("the condition is %+v", c)
			} else if status == "" {
				return nil
			}
			return condition(b, &b.Status.Status, "ArchiveReady", status, reason)
		}).Status.Address.GetURL()
	}
	configure := func(retention string) {
		t.Helper()
		configMap.Data[settings.KeyArchiveRetention] = retention
		if _, err := configs().CoreV1().ConfigMaps(ns).Update(t.Context(), configMap, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	archived := func(want float64) {
		t.Helper()
		if got, _ := lookup(t, s, fmt.Sprintf(`knative_eventing_archived_total{namespace=%q}`, ns)); got != want {
			t.Errorf("%v events were archived, want %v", got, want)
		}
	}
	address := expect(corev1.ConditionTrue, "")
	mustPost(t, address, event{id: "1", kind: "order"}, event{id: "2", kind: "order"})
	archived(2)
	configure("0")
	expect("", "")
	mustPost(t, address, event{id: "3", kind: "order"})
	archived(2)
	configure("3h")
	expect(corev1.ConditionTrue, "ArchiveLimited")
	mustPost(t, address, event{id: "4", kind: "order"})
	archived(3)
	configure("forever")
	expect(corev1.ConditionFalse, "ConfigInvalid")
	mustPost(t, address, event{id: "5", kind: "order"})
	archived(4)

	s.Kill()
	if err := s.restart(); err != nil {
		t.Fatal(err)
	}
	mustPost(t, expect(corev1.ConditionFalse, "ConfigInvalid"), event{id: "6", kind: "order"})
	archived(1)
	harness.Eventually(t, "the archive has events after a kill", func() error {
		if bytes, _ := lookup(t, s, "knative_eventing_archive_bytes"); bytes == 0 {
			return errors.New("it is empty")
		}
		return nil
	})
	configure("1h")
	expect(corev1.ConditionTrue, "")

	other := start(t, t.TempDir(), "--archive-max-retention=0")
	if _, found := lookup(t, other, "knative_eventing_archive_bytes"); found {
		t.Error("a server without archives has metrics of them")
	}
}
