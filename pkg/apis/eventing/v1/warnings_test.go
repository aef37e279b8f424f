package v1

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// Fields without effect cause a warning, unless another class may read them.
func TestWarnings(t *testing.T) {
	b := &Broker{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		"eventing.knative.dev/scope": "namespace", "eventing.knative.dev/creator": "a", "eventing.knative.dev/delivery.order": "ordered", BrokerClassAnnotationKey: BrokerClassJetStream,
	}}}
	b.Spec.Config = &duckv1.KReference{Kind: "ConfigMap", Name: "a"}
	b.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{Audience: ptr.To("a")}}
	got := strings.Join(WarnBroker(b, false), "\n")
	for _, path := range []string{"metadata.annotations[eventing.knative.dev/scope]: ", "metadata.annotations[eventing.knative.dev/delivery.order]: ", "spec.config: ", "spec.delivery.deadLetterSink.audience: "} {
		if !strings.Contains(got, path) {
			t.Errorf("the warnings lack %s:\n%s", path, got)
		}
	}
	if n := len(WarnBroker(b, false)); n != 4 {
		t.Errorf("%d warnings, want 4:\n%s", n, got)
	}
	b.Annotations[BrokerClassAnnotationKey] = "Kafka"
	if got := WarnBroker(b, false); len(got) > 0 {
		t.Errorf("warnings about a foreign Broker: %v", got)
	}
	tr := &Trigger{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"eventing.knative.dev/injection": "enabled", "knative.dev/dependency": "{}",
		"eventing.knative.dev/delivery.order": "ordered", "kafka.eventing.knative.dev/delivery.order": "ordered"}}}
	tr.Spec.Subscriber.Audience = ptr.To("a")
	if got := WarnTrigger(tr, false); len(got) != 2 {
		t.Errorf("warnings about the Trigger: %v, want two", got)
	}
}
