package eventing

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	brokerDefaults    = "config-br-defaults"
	brokerDefaultsKey = "default-br-config"
)

// restoreBrokerDefaults restores the current ConfigMap when the test ends.
func restoreBrokerDefaults(t *testing.T) {
	t.Helper()
	maps := node.Host.CoreV1().ConfigMaps(harness.SystemNamespace)
	before, err := maps.Get(t.Context(), brokerDefaults, metav1.GetOptions{})
	absent := apierrors.IsNotFound(err)
	if err != nil && !absent {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := maps.Delete(context.Background(), brokerDefaults, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		if !absent {
			before.ResourceVersion, before.UID = "", ""
			if _, err := maps.Create(context.Background(), before, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// setBrokerDefaults sets the only value of the ConfigMap.
func setBrokerDefaults(t *testing.T, value string) {
	t.Helper()
	configMaps := node.Host.CoreV1().ConfigMaps(harness.SystemNamespace)
	data := map[string]string{brokerDefaultsKey: value}
	configMap, err := configMaps.Get(t.Context(), brokerDefaults, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = configMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: brokerDefaults}, Data: data}, metav1.CreateOptions{})
	} else if err == nil {
		configMap.Data = maps.Clone(data)
		_, err = configMaps.Update(t.Context(), configMap, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestBrokerDefaults checks that a ConfigMap in the system namespace sets the delivery defaults of new Brokers on every
// replica, and that an Event reports an invalid value, which changes nothing. It names only the namespace of this test, so that
// other tests are not affected.
func TestBrokerDefaults(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "defaults")
	dead := newSink(t).At("/dead")
	restoreBrokerDefaults(t)
	setBrokerDefaults(t, fmt.Sprintf(`{namespaceDefaults: {%s: {delivery: {retry: 1, backoffDelay: PT0.1S, deadLetterSink: %s}}}}`, s.Name, uri(dead.URL)))
	defaulted := func(i int) error {
		name := fmt.Sprintf("broker-%d", i)
		s.Apply(t, broker(name, ""))
		retry, err := retries(t.Context(), s, name)
		if err == nil && retry != 1 {
			err = fmt.Errorf("retry is %d", retry)
		}
		return err
	}
	made := 0
	several := func() error {
		// Several in a row, because each replica reads the ConfigMap on its own.
		for range 4 {
			made++
			if err := defaulted(made); err != nil {
				return err
			}
		}
		return nil
	}
	until(t, "new Brokers have the delivery of the ConfigMap", several)
	// The last Broker is known to have it.
	last := fmt.Sprintf("broker-%d", made)
	s.Apply(t, strings.Replace(trigger("refused", "order", uri("http://"+s.Host("client")+"/?code=400"), ""), "broker: default", "broker: "+last, 1))
	s.Ready(t, "trigger/refused")
	post(t, s.Client(t, "client"), s.Address(t, "broker/"+last), "1", "order")
	if err := dead.AwaitAll(bounded(t), []string{"1"}); err != nil {
		t.Error(err)
	}

	setBrokerDefaults(t, "{namespaceDefaults: 7}")
	harness.Eventually(t, "an Event reports the fault", func() error {
		events, err := node.Host.CoreV1().Events(harness.SystemNamespace).List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=ConfigMap,involvedObject.name=" + brokerDefaults,
		})
		if err != nil {
			return err
		}
		for i := range events.Items {
			if e := &events.Items[i]; e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, brokerDefaultsKey) {
				return nil
			}
		}
		return fmt.Errorf("got %d other Events", len(events.Items))
	})
	until(t, "new Brokers have the delivery of the ConfigMap after an invalid change", several)
}

// retries returns the number of retries of a Broker's deliveries.
func retries(ctx context.Context, s *harness.Space, name string) (int64, error) {
	object, err := node.Admin.Dynamic.Resource(harness.KindOf("Broker").GVR()).Namespace(s.Name).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	retry, _, err := unstructured.NestedInt64(object.Object, "spec", "delivery", "retry")
	return retry, err
}
