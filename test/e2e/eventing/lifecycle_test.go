package eventing

import (
	"testing"
)

// TestMissingSubscriber checks that conditions report a missing subscriber, and that events that are accepted meanwhile are
// delivered once it exists (eventing Destination Resolution, eventing Trigger Lifecycle, eventing Subscription Lifecycle).
func TestMissingSubscriber(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "missing")
	ksvc := ref("serving.knative.dev/v1", "Service", "later")
	s.Apply(t,
		broker("default", ""), channel("orders"), s.Application(t, "logger", nil),
		trigger("missing", "order", coreService("later"), ""), trigger("ksvc", "order", ksvc, ""),
		subscription("missing", "orders", coreService("later"), ""),
		trigger("vanishing", "order", coreService("logger"), ""))
	for _, name := range []string{"trigger/missing", "subscription/missing"} {
		s.Says(t, name, "Ready", "False SubscriberNotFound", `v1 Service "`+s.Name+`/later" does not exist`)
	}
	s.Says(t, "trigger/missing", "SubscriberResolved", "False SubscriberNotFound")
	s.Says(t, "subscription/missing", "ReferencesResolved", "False")
	s.Says(t, "trigger/ksvc", "Ready", "False SubscriberNotFound", `serving.knative.dev/v1 Service "`+s.Name+`/later" does not exist`)

	s.Ready(t, "trigger/vanishing", "pod/logger")
	s.Delete(t, "service/logger", "pod/logger")
	s.Says(t, "trigger/vanishing", "Ready", "False SubscriberNotFound")
	post(t, s.Client(t, "client"), s.Address(t, "broker/default"), "waiting", "order")
	s.Apply(t, s.Application(t, "logger", nil), s.Application(t, "later", nil))
	s.Ready(t, "pod/logger", "trigger/vanishing", "trigger/missing", "subscription/missing")
	logged(t, s, "logger", `"id":"waiting"`)
}

// TestBrokerRecreated checks that a Trigger reports a missing Broker, and works with a new Broker and with the one after it
// (eventing Trigger Lifecycle).
func TestBrokerRecreated(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "back")
	subscriber := newSink(t).At("/")
	s.Apply(t, trigger("orders", "order", uri(subscriber.URL), ""))
	client := s.Client(t, "client")
	for _, id := range []string{"first", "second"} {
		s.Says(t, "trigger/orders", "Ready", "False BrokerDoesNotExist", `Broker "`+s.Name+`/default" does not exist`)
		s.Apply(t, broker("default", ""))
		s.Ready(t, "broker/default", "trigger/orders")
		post(t, client, s.Address(t, "broker/default"), id, "order")
		if err := subscriber.AwaitAll(bounded(t), []string{id}); err != nil {
			t.Fatal(err)
		}
		s.Delete(t, "brokers.eventing.knative.dev/default")
	}
	s.Says(t, "trigger/orders", "Ready", "False BrokerDoesNotExist")
}
