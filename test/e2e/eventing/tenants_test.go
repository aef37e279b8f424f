package eventing

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// allowing is an annotation that lets namespaces refer to an object.
func allowing(namespace string) string {
	return fmt.Sprintf("annotations: {eventing.knative.dev/allow-from: %q}", namespace)
}

// TestOtherNamespace checks that a reference to another namespace only works while the object there allows it, as subscriber,
// reply and dead letter sink of each kind (eventing Destination Resolution).
func TestOtherNamespace(t *testing.T) {
	t.Parallel()
	s, other := newSpace(t, "from"), node.NewSpace(t, "to")
	sink := newSink(t)
	service := func(metadata string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: logger, %s}, spec: {selector: {app: logger}, ports: [{port: 80, targetPort: 8080}]}}", metadata)
	}
	brokerOf := func(metadata string) string {
		return fmt.Sprintf("{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: default, %s}}", metadata)
	}
	other.Apply(t, other.Application(t, "logger", nil), brokerOf(""), trigger("all", "order", uri(sink.At("/").URL), ""))
	other.Ready(t, "pod/logger", "trigger/all")
	toService := in(other.Name, coreService("logger"))
	toBroker := in(other.Name, ref("eventing.knative.dev/v1", "Broker", "default"))
	dead := "delivery: {deadLetterSink: " + toBroker + "}"
	missing := in(other.Name, coreService("missing"))
	s.Apply(t,
		broker("default", ""), broker("dead", dead), channel("orders"),
		fmt.Sprintf("{apiVersion: messaging.knative.dev/v1, kind: Channel, metadata: {name: dead}, spec: {%s}}", dead),
		trigger("service", "order", toService, ""), trigger("broker", "order", toBroker, ""), trigger("missing", "order", missing, ""),
		trigger("dead", "order", uri("http://"+s.Host("client")+"/?code=400"), dead),
		subscription("service", "orders", toService, ""),
		subscription("reply", "orders", coreService("client"), "reply: "+toBroker))
	refused := map[string]string{
		"trigger/service": "Subscriber", "trigger/broker": "Subscriber", "trigger/dead": "DeadLetterSink",
		"broker/dead": "DeadLetterSink", "channel/dead": "DeadLetterSink",
		"subscription/service": "Subscriber", "subscription/reply": "Reply",
	}
	for name, role := range refused {
		s.Says(t, name, "Ready", "False "+role+"NotGranted", other.Name, "eventing.knative.dev/allow-from")
	}
	// A missing object is reported like an existing one.
	s.Says(t, "trigger/missing", "Ready", "False SubscriberNotGranted", "If it exists")

	other.Apply(t, service(allowing("elsewhere, "+s.Name)), brokerOf(allowing("*")))
	for name := range refused {
		s.Ready(t, name)
	}
	s.Says(t, "trigger/missing", "Ready", "False SubscriberNotGranted")
	client := s.Client(t, "client")
	post(t, client, s.Address(t, "broker/default"), "granted", "order")
	logged(t, other, "logger", `"id":"granted"`)
	if err := sink.At("/").AwaitAll(bounded(t), []string{"granted"}); err != nil {
		t.Error(err)
	}

	other.Apply(t, service(""), brokerOf(""))
	for name, role := range refused {
		s.Says(t, name, "Ready", "False "+role+"NotGranted")
	}
	object := s.Says(t, "trigger/service", "SubscriberResolved", "False")
	if address, found, err := unstructured.NestedString(object.Object, "status", "subscriberUri"); found || err != nil {
		t.Errorf("the subscriber's address is still %q (%v)", address, err)
	}
}
