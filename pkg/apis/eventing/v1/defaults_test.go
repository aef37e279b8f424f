package v1

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

func reference(namespace string) *duckv1.KReference {
	return &duckv1.KReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: "a"}
}

func sink(namespace string) *duckv1.DeliverySpec {
	return &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{Ref: reference(namespace)}}
}

func classed(class string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "shop", Annotations: map[string]string{BrokerClassAnnotationKey: class}}
}

func TestBrokerDefaults(t *testing.T) {
	tests := []struct {
		name     string
		in, want *Broker
	}{
		{"an empty spec does not change", &Broker{}, &Broker{}},
		{"references get the namespace",
			&Broker{ObjectMeta: classed("Kafka"), Spec: BrokerSpec{Config: reference(""), Delivery: sink("")}},
			&Broker{ObjectMeta: classed("Kafka"), Spec: BrokerSpec{Config: reference("shop"), Delivery: sink("shop")}}},
		{"everything said",
			&Broker{ObjectMeta: classed("Kafka"), Spec: BrokerSpec{Config: reference("a"), Delivery: sink("b")}},
			&Broker{ObjectMeta: classed("Kafka"), Spec: BrokerSpec{Config: reference("a"), Delivery: sink("b")}}},
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

// Class and config are populated when a Broker is created (eventing Broker Lifecycle-7, -8).
// It covers eventing Broker Lifecycle-10.
func TestBrokerCreateDefaults(t *testing.T) {
	options := func(namespace string) BrokerOptions {
		return BrokerOptions{Config: reference(namespace), Delivery: sink("")}
	}
	cluster := Settings{Cluster: BrokerDefaults{Class: "Kafka", Options: options("system")}}
	team := Settings{Cluster: cluster.Cluster, Namespaces: map[string]BrokerDefaults{"team": {Class: "Rabbit"}}}
	shop := Settings{Cluster: cluster.Cluster, Namespaces: map[string]BrokerDefaults{"shop": {Class: "Rabbit"}}}
	classes := Settings{Cluster: BrokerDefaults{Options: options("system"), Classes: map[string]BrokerOptions{"Rabbit": {Config: reference("rabbits")}}}}
	unnamed := metav1.ObjectMeta{Namespace: "shop"}
	tests := []struct {
		name     string
		settings Settings
		in, want *Broker
	}{
		{"no settings", DefaultSettings(),
			&Broker{ObjectMeta: unnamed},
			&Broker{ObjectMeta: classed(BrokerClassJetStream), Spec: BrokerSpec{Config: &duckv1.KReference{}}}},
		{"empty class", DefaultSettings(),
			&Broker{ObjectMeta: classed("")},
			&Broker{ObjectMeta: classed(BrokerClassJetStream), Spec: BrokerSpec{Config: &duckv1.KReference{}}}},
		{"defaults of the cluster", team,
			&Broker{ObjectMeta: unnamed},
			&Broker{ObjectMeta: classed("Kafka"), Spec: BrokerSpec{Config: reference("system"), Delivery: sink("shop")}}},
		{"defaults of the namespace instead, as a whole", shop,
			&Broker{ObjectMeta: unnamed},
			&Broker{ObjectMeta: classed("Rabbit"), Spec: BrokerSpec{Config: &duckv1.KReference{}}}},
		{"defaults of the class", classes,
			&Broker{ObjectMeta: classed("Rabbit")},
			&Broker{ObjectMeta: classed("Rabbit"), Spec: BrokerSpec{Config: reference("rabbits")}}},
		{"a class without its own defaults", classes,
			&Broker{ObjectMeta: unnamed},
			&Broker{ObjectMeta: classed(BrokerClassJetStream), Spec: BrokerSpec{Config: reference("system"), Delivery: sink("shop")}}},
		{"the reference gets the namespace", Settings{Cluster: BrokerDefaults{Options: options("")}},
			&Broker{ObjectMeta: unnamed},
			&Broker{ObjectMeta: classed(BrokerClassJetStream), Spec: BrokerSpec{Config: reference("shop"), Delivery: sink("shop")}}},
		{"everything said", cluster,
			&Broker{ObjectMeta: classed("Rabbit"), Spec: BrokerSpec{Config: &duckv1.KReference{}, Delivery: &duckv1.DeliverySpec{Retry: ptr.To[int32](0)}}},
			&Broker{ObjectMeta: classed("Rabbit"), Spec: BrokerSpec{Config: &duckv1.KReference{}, Delivery: &duckv1.DeliverySpec{Retry: ptr.To[int32](0)}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := tt.in.DeepCopy()
			in.SetCreateDefaults(tt.settings)
			if diff := cmp.Diff(tt.want, in); diff != "" {
				t.Errorf("defaults (-want +got):\n%s", diff)
			}
		})
	}
	if diff := cmp.Diff(options("system"), cluster.Cluster.Options); diff != "" {
		t.Errorf("the settings changed (-want +got):\n%s", diff)
	}
}

// An update that omits class and config does not change them (eventing Broker Lifecycle-5).
func TestBrokerUpdateDefaults(t *testing.T) {
	old := &Broker{ObjectMeta: classed("Kafka"), Spec: BrokerSpec{Config: reference("system"), Delivery: sink("shop")}}
	for name, tt := range map[string]struct{ in, want *Broker }{
		"left out": {
			&Broker{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}},
			&Broker{ObjectMeta: classed("Kafka"), Spec: BrokerSpec{Config: reference("system")}},
		},
		"given": {
			&Broker{ObjectMeta: classed("Rabbit"), Spec: BrokerSpec{Config: &duckv1.KReference{}}},
			&Broker{ObjectMeta: classed("Rabbit"), Spec: BrokerSpec{Config: &duckv1.KReference{}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.in.SetUpdateDefaults(old)
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
		{"label of brokerRef, which keeps its namespace",
			&Trigger{ObjectMeta: labels(nil), Spec: TriggerSpec{BrokerRef: &duckv1.KReference{Name: "b"}}},
			&Trigger{ObjectMeta: labels(map[string]string{BrokerLabelKey: "b"}), Spec: TriggerSpec{BrokerRef: &duckv1.KReference{Name: "b"}, Filter: &TriggerFilter{}}}},
		{"wrong label",
			&Trigger{ObjectMeta: labels(map[string]string{BrokerLabelKey: "c", "team": "d"}), Spec: TriggerSpec{Broker: "b"}},
			&Trigger{ObjectMeta: labels(map[string]string{BrokerLabelKey: "b", "team": "d"}), Spec: TriggerSpec{Broker: "b", Filter: &TriggerFilter{}}}},
		{"a name that is too long for a label",
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
