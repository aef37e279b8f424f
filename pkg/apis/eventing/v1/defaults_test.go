package v1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

func reference(namespace string) *duckv1.KReference {
	return &duckv1.KReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: "a"}
}

func sink(namespace string) *duckv1.DeliverySpec {
	return &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{Ref: reference(namespace)}}
}

// TestBrokerDefaults covers eventing Broker Lifecycle: class and config are populated on creation.
func TestBrokerDefaults(t *testing.T) {
	class := func(class string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Annotations: map[string]string{BrokerClassAnnotationKey: class}}
	}
	tests := []struct {
		name     string
		in, want *Broker
	}{
		{"nothing said",
			&Broker{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}},
			&Broker{ObjectMeta: class(BrokerClassJetStream), Spec: BrokerSpec{Config: &duckv1.KReference{}}}},
		{"empty class",
			&Broker{ObjectMeta: class("")},
			&Broker{ObjectMeta: class(BrokerClassJetStream), Spec: BrokerSpec{Config: &duckv1.KReference{}}}},
		{"class stays, references get the namespace",
			&Broker{ObjectMeta: class("Kafka"), Spec: BrokerSpec{Config: reference(""), Delivery: sink("")}},
			&Broker{ObjectMeta: class("Kafka"), Spec: BrokerSpec{Config: reference("shop"), Delivery: sink("shop")}}},
		{"everything said",
			&Broker{ObjectMeta: class("Kafka"), Spec: BrokerSpec{Config: reference("a"), Delivery: sink("b")}},
			&Broker{ObjectMeta: class("Kafka"), Spec: BrokerSpec{Config: reference("a"), Delivery: sink("b")}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			SetDefaults_Broker(tt.in)
			if diff := cmp.Diff(tt.want, tt.in); diff != "" {
				t.Errorf("defaults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTriggerDefaults(t *testing.T) {
	labels := func(labels map[string]string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Labels: labels}
	}
	filter := &TriggerFilter{Attributes: map[string]string{"type": "a"}}
	long := strings.Repeat("b", 64)
	tests := []struct {
		name     string
		in, want *Trigger
	}{
		{"nothing said",
			&Trigger{},
			&Trigger{Spec: TriggerSpec{Filter: &TriggerFilter{}}}},
		{"label and namespaces",
			&Trigger{ObjectMeta: labels(nil), Spec: TriggerSpec{Broker: "b", Filter: filter, Subscriber: duckv1.Destination{Ref: reference("")}, Delivery: sink("")}},
			&Trigger{ObjectMeta: labels(map[string]string{BrokerLabelKey: "b"}), Spec: TriggerSpec{Broker: "b", Filter: filter, Subscriber: duckv1.Destination{Ref: reference("shop")}, Delivery: sink("shop")}}},
		{"wrong label",
			&Trigger{ObjectMeta: labels(map[string]string{BrokerLabelKey: "c", "team": "d"}), Spec: TriggerSpec{Broker: "b"}},
			&Trigger{ObjectMeta: labels(map[string]string{BrokerLabelKey: "b", "team": "d"}), Spec: TriggerSpec{Broker: "b", Filter: &TriggerFilter{}}}},
		{"a name that no label can hold",
			&Trigger{ObjectMeta: labels(map[string]string{BrokerLabelKey: "c"}), Spec: TriggerSpec{Broker: long}},
			&Trigger{ObjectMeta: labels(map[string]string{}), Spec: TriggerSpec{Broker: long, Filter: &TriggerFilter{}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			SetDefaults_Trigger(tt.in)
			if diff := cmp.Diff(tt.want, tt.in); diff != "" {
				t.Errorf("defaults (-want +got):\n%s", diff)
			}
		})
	}
}
