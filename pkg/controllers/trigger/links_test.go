package trigger

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// linked makes a Trigger refer to the Broker events/orders.
func linked(trigger *eventingv1.Trigger) {
	trigger.Spec.Broker = ""
	trigger.Spec.BrokerRef = &duckv1.KReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Namespace: "events", Name: "orders"}
}

// A Trigger receives events of a Broker of another namespace while the settings allow that, and inherits the address of its dead letter sink.
func TestLinked(t *testing.T) {
	name := types.NamespacedName{Namespace: "events", Name: "orders"}
	f := start(t, service("billing", "http://billing"), newTrigger(linked), newBroker(), newBroker(func(b *eventingv1.Broker) {
		b.Namespace, b.UID = name.Namespace, "foreign-uid"
		b.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](3), DeadLetterSink: &duckv1.Destination{
			Ref: &duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Namespace: name.Namespace, Name: "letters"},
		}}
		b.Status.DeliveryStatus = duckv1.DeliveryStatus{DeadLetterSinkURI: "http://letters"}
		b.Status.Conditions = append(b.Status.Conditions, reconciler.True(destination.ConditionDeadLetterSinkResolved))
	}))
	disabled := func(when string) {
		t.Helper()
		status := f.reconcile(t)
		if got := brief(status.Conditions); got["Ready"] != "False CrossNamespaceLinksDisabled" || got["SubscriptionReady"] != "False NotSubscribed" {
			t.Errorf("%s: %v", when, got)
		}
		if got, set := f.consumers.set[Key(key)]; set {
			t.Errorf("%s: the consumer is %+v", when, got)
		}
	}
	disabled("before the settings allow it")

	f.r.Links = func() bool { return true }
	status := f.reconcile(t)
	if got := brief(status.Conditions); got["Ready"] != "True" || status.DeadLetterSinkURI != "http://letters" {
		t.Errorf("conditions %v, dead letter sink %q", got, status.DeadLetterSinkURI)
	}
	got := f.consumers.set[Key(key)]
	if got.Stream != streams.BrokerKey(name) || got.StreamUID != "foreign-uid" || got.DeadLetter != (eventing.Endpoint{URL: "http://letters"}) || got.Delivery.Retry != 3 {
		t.Errorf("consumer: %+v", got)
	}

	f.r.Links = func() bool { return false }
	disabled("after the settings changed")

	f.r.Links = func() bool { return true }
	if err := f.Client.Tracker().Delete(brokers, name.Namespace, name.Name); err != nil {
		t.Fatal(err)
	}
	status = f.reconcile(t)
	if got := brief(status.Conditions)["Ready"]; got != "False BrokerDoesNotExist" {
		t.Errorf("without the Broker: %q", got)
	}
	if got := status.Conditions.Get(duckv1.ConditionReady).Message; got != `Broker "events/orders" does not exist.` {
		t.Errorf("without the Broker: %q", got)
	}
}

// The dead letters of a linked Trigger wait while the Broker's sink is unresolved.
func TestLinkedDeadLetterSink(t *testing.T) {
	f := start(t, service("billing", "http://billing"), newTrigger(linked), newBroker(func(b *eventingv1.Broker) {
		b.Namespace = "events"
		b.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: to("letters")}
	}))
	f.r.Links = func() bool { return true }
	status := f.reconcile(t)
	if got := brief(status.Conditions)["DeadLetterSinkResolved"]; got != "False BrokerNotConfigured" {
		t.Errorf("the condition is %q", got)
	}
	if got := f.consumers.set[Key(key)].DeadLetter; got != (eventing.Endpoint{Unresolved: true}) {
		t.Errorf("dead letters go to %+v", got)
	}
}
