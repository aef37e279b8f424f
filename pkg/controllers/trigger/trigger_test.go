package trigger

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// billed returns the consumer of newTrigger at newBroker, with the subscriber at a URL.
func billed(url string) eventing.Consumer {
	return eventing.Consumer{
		Key: Key(key), UID: "trigger-uid",
		Stream: eventing.Key{Kind: eventing.Broker, Namespace: "default", Name: "orders"}, StreamUID: "broker-uid",
		Subscriber: eventing.Endpoint{URL: url}, Delivery: streams.DeliveryOf(nil),
	}
}

// TestReady checks that a Trigger is ready after its consumer was set, and not before; a second reconciliation writes nothing (eventing
// Trigger Lifecycle-1 and -7, eventing Trigger-3 and -4).
func TestReady(t *testing.T) {
	f := start(t, newTrigger(), newBroker(), service("billing", "http://billing"))
	f.consumers.called = func() {
		if status := f.stored(t); len(status.Conditions) > 0 {
			t.Errorf("events before the consumer was set: %v", status.Conditions)
		}
	}
	status := f.reconcile(t)
	want := map[string]string{
		"Ready": "True", "BrokerReady": "True", "SubscriptionReady": "True", "DependencyReady": "True", "SubscriberResolved": "True",
		"DeadLetterSinkResolved": "True DeadLetterSinkNotConfigured", "OIDCIdentityCreated": "True authentication-oidc feature disabled",
	}
	if diff := cmp.Diff(want, brief(status.Conditions)); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if status.ObservedGeneration != 1 || status.SubscriberURI != "http://billing" {
		t.Errorf("status: %+v", status)
	}
	if diff := cmp.Diff(billed("http://billing"), f.consumers.set[Key(key)]); diff != "" {
		t.Errorf("consumer (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Normal Ready Became ready"}, f.Events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	f.consumers.called = func() {}
	f.reconcile(t)
	if writes := f.Writes(); len(writes) > 0 {
		t.Errorf("writes at rest: %v", writes)
	}
}

// TestBroker checks that Ready is False, never Unknown, while the Broker is missing or not ready (eventing Trigger Lifecycle-8 and -9).
func TestBroker(t *testing.T) {
	tests := []struct {
		name           string
		broker         *eventingv1.Broker
		ready, message string
		subscription   string
	}{
		{"missing", nil, "False BrokerDoesNotExist", `Broker "default/orders" does not exist.`, "False NotSubscribed"},
		{"going", newBroker(func(b *eventingv1.Broker) { b.DeletionTimestamp = &metav1.Time{Time: controllertest.Now} }),
			"True", "", "True"},
		{"new", newBroker(func(b *eventingv1.Broker) { b.Status = eventingv1.BrokerStatus{} }),
			"False BrokerNotConfigured", `Broker "default/orders" has not been configured yet.`, "True"},
		{"without an address", newBroker(func(b *eventingv1.Broker) { b.Status.Address = nil }),
			"False BrokerNotConfigured", `Broker "default/orders" has not been configured yet.`, "True"},
		{"not ready", newBroker(says(reconciler.False(duckv1.ConditionReady, "StreamFailed", "The disk is full"))),
			"False StreamFailed", `Broker "default/orders" is not ready: The disk is full`, "True"},
		{"unknown", newBroker(says(reconciler.Unknown(duckv1.ConditionReady, "StreamPending", "Wait"))),
			"False StreamPending", `Broker "default/orders" is not ready: Wait`, "True"},
		{"unknown why", newBroker(says(reconciler.Unknown(duckv1.ConditionReady, "", ""))),
			"False BrokerNotConfigured", `Broker "default/orders" has not been configured yet.`, "True"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := start(t, newTrigger(), service("billing", "http://billing"))
			if tt.broker != nil {
				f.add(t, tt.broker)
			}
			status := f.reconcile(t)
			got := brief(status.Conditions)
			if got["Ready"] != tt.ready || got["BrokerReady"] != tt.ready || got["SubscriptionReady"] != tt.subscription {
				t.Errorf("conditions: %v", got)
			}
			if ready := status.Conditions.Get(duckv1.ConditionReady); ready.Message != tt.message {
				t.Errorf("message: %q", ready.Message)
			}
			if status.SubscriberURI != "http://billing" {
				t.Errorf("the subscriber must be resolved regardless of the Broker: %q", status.SubscriberURI)
			}
			if _, set := f.consumers.set[Key(key)]; set != (tt.subscription == "True") {
				t.Errorf("consumer set: %v", set)
			}
		})
	}
}

// Changes of a Broker that do not affect its Triggers do not enqueue them.
func TestSameToTriggers(t *testing.T) {
	says := func(condition duckv1.Condition) func(*eventingv1.Broker) {
		return func(b *eventingv1.Broker) {
			b.Status.Conditions = append(duckv1.Conditions{condition}, b.Status.Conditions...)
		}
	}
	for name, test := range map[string]struct {
		change func(*eventingv1.Broker)
		same   bool
	}{
		"another condition": {says(reconciler.False("Archived", "", "")), true},
		"generation":        {func(b *eventingv1.Broker) { b.Generation++; b.Status.ObservedGeneration++ }, true},
		"UID":               {func(b *eventingv1.Broker) { b.UID = "new" }, false},
		"deletion":          {func(b *eventingv1.Broker) { b.DeletionTimestamp = ptr.To(metav1.NewTime(controllertest.Now)) }, false},
		"annotation": {func(b *eventingv1.Broker) {
			b.Annotations = map[string]string{duckv1.DeadLetterStoreAnnotationKey: "disabled"}
		}, false},
		"delivery":                {func(b *eventingv1.Broker) { b.Spec.Delivery = &duckv1.DeliverySpec{} }, false},
		"address":                 {func(b *eventingv1.Broker) { b.Status.Address = nil }, false},
		"dead letter sink":        {func(b *eventingv1.Broker) { b.Status.DeadLetterSinkURI = "http://dead/" }, false},
		"ready":                   {says(reconciler.False(duckv1.ConditionReady, "", "")), false},
		"unresolved dead letters": {says(reconciler.False(destination.ConditionDeadLetterSinkResolved, "", "")), false},
	} {
		t.Run(name, func(t *testing.T) {
			changed := newBroker(test.change)
			if got := sameToTriggers(newBroker(), changed); got != test.same {
				t.Errorf("got %t, want %t", got, test.same)
			}
		})
	}
}

// TestBrokerRecreated checks that the consumer is removed with its Broker, and added again with a new one (eventing Trigger Lifecycle-8).
func TestBrokerRecreated(t *testing.T) {
	f := start(t, newTrigger(), newBroker(), service("billing", "http://billing"))
	f.reconcile(t)
	f.drop(t, brokers, "orders")
	if got := brief(f.reconcile(t).Conditions)["Ready"]; got != "False BrokerDoesNotExist" || len(f.consumers.set) > 0 {
		t.Errorf("deleted: Ready is %q, consumers %v", got, f.consumers.set)
	}
	f.add(t, newBroker(func(b *eventingv1.Broker) { b.UID = "another" }))
	if got := brief(f.reconcile(t).Conditions)["Ready"]; got != "True" || f.consumers.set[Key(key)].StreamUID != "another" {
		t.Errorf("recreated: Ready is %q, consumers %v", got, f.consumers.set)
	}
}

// TestForeignBroker checks that Triggers whose Broker another controller serves are ignored (eventing Broker Lifecycle).
func TestForeignBroker(t *testing.T) {
	f := start(t, newTrigger(), newBroker(func(b *eventingv1.Broker) { b.Annotations[eventingv1.BrokerClassAnnotationKey] = "Kafka" }))
	if diff := cmp.Diff(eventingv1.TriggerStatus{}, f.reconcile(t)); diff != "" || len(f.consumers.set) > 0 {
		t.Errorf("consumers %v, status (-want +got):\n%s", f.consumers.set, diff)
	}
}

// TestNotSubscribed checks that a Trigger is not ready until its consumer could be set (eventing Trigger Lifecycle-7).
func TestNotSubscribed(t *testing.T) {
	f := start(t, newTrigger(), newBroker(), service("billing", "http://billing"))
	f.consumers.err = errors.New("no such stream")
	if err := controllertest.Reconcile(t.Context(), f.r, key); !errors.Is(err, f.consumers.err) {
		t.Fatalf("got %v, want to try again", err)
	}
	status := f.stored(t)
	if got := brief(status.Conditions); got["Ready"] != "False NotSubscribed" || got["SubscriptionReady"] != "False NotSubscribed" {
		t.Errorf("conditions: %v", got)
	}
	if ready := status.Conditions.Get(duckv1.ConditionReady); ready.Message != "Subscribing to the Broker failed: no such stream" {
		t.Errorf("message: %q", ready.Message)
	}
	f.consumers.err = nil
	if got := brief(f.reconcile(t).Conditions)["Ready"]; got != "True" {
		t.Errorf("later: Ready is %q", got)
	}
}

// TestBrokerNotSet checks that a Trigger waits for a Broker that does not keep events yet, without retries.
func TestBrokerNotSet(t *testing.T) {
	f := start(t, newTrigger(), newBroker(func(b *eventingv1.Broker) { b.Status = eventingv1.BrokerStatus{} }), service("billing", "http://billing"))
	f.consumers.err = errors.New("no such stream")
	if got := brief(f.reconcile(t).Conditions); got["SubscriptionReady"] != "False NotSubscribed" || got["Ready"] != "False BrokerNotConfigured" {
		t.Errorf("conditions: %v", got)
	}
}

// TestSubscriber covers changes of the subscriber; without an address status.subscriberUri is empty, and the Broker keeps the events
// (eventing Trigger Lifecycle-1 to -4; eventing Destination Resolution-4 and -5).
func TestSubscriber(t *testing.T) {
	f := start(t, newTrigger(), newBroker())
	expect := func(what, ready, uri string) {
		t.Helper()
		status := f.reconcile(t)
		got := brief(status.Conditions)
		resolved := ready
		if ready != "True" {
			if message := status.Conditions.Get(duckv1.ConditionReady).Message; !strings.HasPrefix(message, `serving.knative.dev/v1 Service "default/`) {
				t.Errorf("%s: message %q", what, message)
			}
		}
		if got["Ready"] != ready || got["SubscriberResolved"] != resolved {
			t.Errorf("%s: %v", what, got)
		}
		to := eventing.Endpoint{URL: uri, Unresolved: uri == ""}
		if got, set := f.consumers.set[Key(key)]; status.SubscriberURI != uri || !set || got.Subscriber != to {
			t.Errorf("%s: status.subscriberUri is %q, consumer set: %v, events go to %+v", what, status.SubscriberURI, set, got.Subscriber)
		}
	}
	expect("missing", "False SubscriberNotFound", "")
	f.add(t, service("billing", ""))
	expect("without an address", "False SubscriberNotAddressable", "")
	f.put(t, services, service("billing", "http://a"))
	expect("there", "True", "http://a")
	f.put(t, services, service("billing", "http://b"))
	expect("moved", "True", "http://b")
	f.drop(t, services, "billing")
	expect("gone", "False SubscriberNotFound", "")
	f.put(t, triggers, newTrigger(func(trigger *eventingv1.Trigger) {
		trigger.Generation, trigger.Spec.Filter = 2, &eventingv1.TriggerFilter{Attributes: map[string]string{"type": "order"}}
	}))
	expect("another filter meanwhile", "False SubscriberNotFound", "")
	if got := f.consumers.set[Key(key)].Attributes["type"]; got != "order" {
		t.Errorf("another filter meanwhile: events of type %q match", got)
	}
	f.add(t, service("billing", "http://c"))
	expect("recreated", "True", "http://c")

	f.add(t, service("other", "http://other"))
	f.put(t, triggers, newTrigger(func(trigger *eventingv1.Trigger) { trigger.Generation, trigger.Spec.Subscriber = 3, *to("other") }))
	expect("another one", "True", "http://other")
}

// TestSubscriberDetails covers the details of an address (eventing duckv1.Addressable).
func TestSubscriberDetails(t *testing.T) {
	secure := service("billing", "https://billing")
	secure.Status.Address.CACerts, secure.Status.Address.Audience = ptr.To("certificates"), ptr.To("them")
	f := start(t, newTrigger(), newBroker(), secure)
	status := f.reconcile(t)
	if ptr.Deref(status.SubscriberCACerts, "") != "certificates" || ptr.Deref(status.SubscriberAudience, "") != "them" {
		t.Errorf("status: %+v", status)
	}
	if got := f.consumers.set[Key(key)].Subscriber; got != (eventing.Endpoint{URL: "https://billing", CACerts: "certificates"}) {
		t.Errorf("consumer: %+v", got)
	}
	f.drop(t, services, "billing")
	if status := f.reconcile(t); status.SubscriberCACerts != nil || status.SubscriberAudience != nil {
		t.Errorf("unresolved: %+v", status)
	}
}

// TestDelivery covers the delivery options: the Trigger's or, as a whole, its Broker's, with the dead letter sink in status (eventing
// Trigger Lifecycle-5, eventing Broker-1; eventing DeliverySpec).
func TestDelivery(t *testing.T) {
	options := func(retry int32, sink string) *duckv1.DeliverySpec {
		spec := &duckv1.DeliverySpec{}
		if retry > 0 {
			spec.Retry = &retry
		}
		if sink != "" {
			spec.DeadLetterSink = to(sink)
		}
		return spec
	}
	tests := []struct {
		name            string
		trigger, broker *duckv1.DeliverySpec
		ready, resolved string
		uri             string
		want            *duckv1.DeliverySpec
	}{
		{"none", nil, nil, "True", "True DeadLetterSinkNotConfigured", "", nil},
		{"the Broker's", nil, options(3, "theirs"), "True", "True", "http://theirs", options(3, "theirs")},
		{"its own", options(5, "ours"), options(3, "theirs"), "True", "True", "http://ours", options(5, "ours")},
		{"its own is empty", options(0, ""), options(3, "theirs"), "True", "True", "http://theirs", options(3, "theirs")},
		{"its own is not completed", options(5, ""), options(3, "theirs"), "True", "True DeadLetterSinkNotConfigured", "", options(5, "")},
		{"its own sink alone", options(0, "ours"), options(3, "theirs"), "True", "True", "http://ours", options(0, "ours")},
		{"its own is missing", options(5, "none"), nil, "False DeadLetterSinkNotFound", "False DeadLetterSinkNotFound", "", options(5, "none")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := start(t, service("billing", "http://billing"), service("ours", "http://ours"), service("theirs", "http://theirs"),
				newTrigger(func(trigger *eventingv1.Trigger) { trigger.Spec.Delivery = tt.trigger }),
				newBroker(func(b *eventingv1.Broker) { b.Spec.Delivery = tt.broker }))
			status := f.reconcile(t)
			if got := brief(status.Conditions); got["Ready"] != tt.ready || got["DeadLetterSinkResolved"] != tt.resolved {
				t.Errorf("conditions: %v", got)
			}
			if status.DeadLetterSinkURI != tt.uri {
				t.Errorf("status.deadLetterSinkUri is %q", status.DeadLetterSinkURI)
			}
			consumer, sink := f.consumers.set[Key(key)], eventing.Endpoint{URL: tt.uri, Unresolved: tt.ready != "True"}
			if diff := cmp.Diff(streams.DeliveryOf(tt.want), consumer.Delivery); diff != "" || consumer.DeadLetter != sink || consumer.Subscriber.URL != "http://billing" {
				t.Errorf("events go to %+v, dead letters to %+v, delivery (-want +got):\n%s", consumer.Subscriber, consumer.DeadLetter, diff)
			}
		})
	}
}

// TestDeadLetterSinkLost checks that dead letters are kept while their sink is missing, and that events are still sent to the subscriber.
func TestDeadLetterSinkLost(t *testing.T) {
	f := start(t, service("billing", "http://billing"), service("sink", "http://sink"), newBroker(),
		newTrigger(func(trigger *eventingv1.Trigger) {
			trigger.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: to("sink")}
		}))
	f.reconcile(t)
	f.drop(t, services, "sink")
	status := f.reconcile(t)
	if got := brief(status.Conditions)["Ready"]; got != "False DeadLetterSinkNotFound" || status.DeadLetterSinkURI != "" {
		t.Errorf("Ready is %q, status.deadLetterSinkUri %q", got, status.DeadLetterSinkURI)
	}
	if got := f.consumers.set[Key(key)]; got.DeadLetter != (eventing.Endpoint{Unresolved: true}) || got.Subscriber.URL != "http://billing" {
		t.Errorf("events go to %+v, dead letters to %+v", got.Subscriber, got.DeadLetter)
	}
}

// TestConsumer covers the consumer of a Trigger (eventing Content Based Routing; eventing Trigger).
func TestConsumer(t *testing.T) {
	order, com := map[string]string{"type": "order"}, map[string]string{"type": "com."}
	type filters = []eventingv1.SubscriptionsAPIFilter
	f := start(t, newBroker(), service("billing", "http://billing"), newTrigger(func(trigger *eventingv1.Trigger) {
		trigger.Annotations = map[string]string{duckv1.DeliveryOrderKafkaAnnotationKey: duckv1.DeliveryOrdered}
		trigger.Spec.Filter = &eventingv1.TriggerFilter{Attributes: map[string]string{"type": "order"}}
		trigger.Spec.Filters = filters{{Prefix: com}, {All: filters{{Exact: order}, {Not: &filters{{Suffix: com}}[0]}}}, {Any: filters{{CESQL: "TRUE"}}}}
	}))
	f.reconcile(t)
	want := billed("http://billing")
	want.Ordered, want.Attributes = true, order
	want.Filters = []eventing.Filter{{Prefix: com}, {All: []eventing.Filter{{Exact: order}, {Not: &eventing.Filter{Suffix: com}}}},
		{Any: []eventing.Filter{{CESQL: "TRUE"}}}}
	if diff := cmp.Diff(want, f.consumers.set[Key(key)]); diff != "" {
		t.Errorf("consumer (-want +got):\n%s", diff)
	}
}

// TestRestored checks that the data plane gets the original UIDs: the event log identifies consumers by them.
func TestRestored(t *testing.T) {
	const brokerUID, triggerUID = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	f := start(t, newBroker(func(broker *eventingv1.Broker) { broker.UID = origin.Restored(brokerUID, "0123456789") }),
		service("billing", "http://billing"),
		newTrigger(func(trigger *eventingv1.Trigger) { trigger.UID = origin.Restored(triggerUID, "0123456789") }))
	for range 2 {
		f.reconcile(t)
		if got := f.consumers.set[Key(key)]; got.UID != triggerUID || got.StreamUID != brokerUID {
			t.Errorf("consumer %s of stream %s, want %s of %s", got.UID, got.StreamUID, triggerUID, brokerUID)
		}
	}
}

// TestDependency checks that a Trigger waits for the object that the annotation names.
func TestDependency(t *testing.T) {
	source := service("source", "http://source")
	f := start(t, newBroker(), service("billing", "http://billing"), newTrigger(func(trigger *eventingv1.Trigger) {
		trigger.Annotations = map[string]string{eventingv1.DependencyAnnotationKey: `{"apiVersion":"serving.knative.dev/v1","kind":"Service","name":"source"}`}
	}))
	expect := func(what, want, message string) {
		t.Helper()
		status := f.reconcile(t)
		if got := brief(status.Conditions); got["Ready"] != want || got["DependencyReady"] != want {
			t.Errorf("%s: %v", what, got)
		}
		if got := status.Conditions.Get(duckv1.ConditionReady).Message; got != message {
			t.Errorf("%s: message %q", what, got)
		}
	}
	expect("missing", "False DependencyDoesNotExist", `serving.knative.dev/v1 Service "default/source" does not exist`)
	f.add(t, source)
	expect("new", "Unknown DependencyNotReady", `serving.knative.dev/v1 Service "default/source" has no Ready condition yet.`)
	for _, tt := range []struct {
		ready         duckv1.Condition
		want, message string
	}{
		{reconciler.Unknown(duckv1.ConditionReady, "Deploying", "Wait"), "Unknown DependencyNotReady", `serving.knative.dev/v1 Service "default/source" is not ready: Deploying: Wait`},
		{reconciler.False(duckv1.ConditionReady, "ExitCode1", "Failed"), "False DependencyNotReady", `serving.knative.dev/v1 Service "default/source" is not ready: ExitCode1: Failed`},
		{reconciler.True(duckv1.ConditionReady), "True", ""},
	} {
		source = source.DeepCopy()
		source.Status.ObservedGeneration = 1
		source.Status.Conditions.Set(tt.ready, metav1.NewTime(controllertest.Now))
		f.put(t, services, source)
		if tt.want == "True" {
			if got := brief(f.reconcile(t).Conditions); got["Ready"] != "True" {
				t.Errorf("ready: %v", got)
			}
			continue
		}
		expect(string(tt.ready.Status), tt.want, tt.message)
	}
	f.put(t, triggers, newTrigger(func(trigger *eventingv1.Trigger) {
		trigger.Annotations = map[string]string{eventingv1.DependencyAnnotationKey: "source"}
	}))
	if got := brief(f.reconcile(t).Conditions)["Ready"]; got != "False DependencyInvalid" {
		t.Errorf("no reference: Ready is %q", got)
	}
}

// TestRemove checks that the consumer of a deleted Trigger is removed, also if another Trigger of its name exists (eventing Trigger Lifecycle).
func TestRemove(t *testing.T) {
	f := start(t, newTrigger(), newBroker(), service("billing", "http://billing"))
	f.reconcile(t)
	f.drop(t, triggers, key.Name)
	f.SyncEventing()
	f.consumers.err = errors.New("not now")
	if err := controllertest.Reconcile(t.Context(), f.r, key); !errors.Is(err, f.consumers.err) {
		t.Errorf("got %v, want to try again", err)
	}
	f.consumers.err = nil
	if err := controllertest.Reconcile(t.Context(), f.r, key); err != nil || len(f.consumers.set) > 0 {
		t.Errorf("gone: %v, %v", f.consumers.set, err)
	}

	f = start(t, newTrigger(), newBroker(), service("billing", "http://billing"))
	f.reconcile(t)
	f.drop(t, triggers, key.Name)
	f.add(t, newTrigger(func(trigger *eventingv1.Trigger) { trigger.UID, trigger.Spec.Subscriber = "another", *to("none") }))
	got := brief(f.reconcile(t).Conditions)["Ready"]
	if consumer := f.consumers.set[Key(key)]; got != "False SubscriberNotFound" || consumer.UID != "another" || !consumer.Subscriber.Unresolved {
		t.Errorf("recreated: Ready is %q, consumer %+v", got, consumer)
	}
}

// TestHealth checks that a Trigger reports failing deliveries with reason and time, and their recovery, without an effect on Ready. It
// covers eventing Error Signalling-11 and -13.
func TestHealth(t *testing.T) {
	f := start(t, newTrigger(), newBroker(), service("billing", "http://billing"))
	f.reconcile(t)
	f.Events()
	f.consumers.health = eventing.Health{Failing: true, Since: controllertest.Now, LastError: "POST http://billing: 503 Service Unavailable"}
	const message = "POST http://billing: 503 Service Unavailable, since 2026-03-01T12:00:00Z"
	condition := f.reconcile(t).Conditions.Get("DeliveryHealthy")
	if condition == nil || condition.Status != "False" || condition.Reason != "DeliveryFailing" || condition.Severity != "Warning" || condition.Message != message {
		t.Errorf("failing: %+v", condition)
	}
	if got := brief(f.stored(t).Conditions)["Ready"]; got != "True" {
		t.Errorf("failing: Ready is %q", got)
	}
	f.consumers.health = eventing.Health{}
	if got := brief(f.reconcile(t).Conditions)["DeliveryHealthy"]; got != "True" {
		t.Errorf("recovered: DeliveryHealthy is %q", got)
	}
	want := []string{"Warning DeliveryFailing " + message, "Normal DeliveryRecovered Deliveries succeed again"}
	if diff := cmp.Diff(want, f.Events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestNew checks that the controller observes the dependencies of a Trigger: its Broker, its subscriber, and itself (eventing Trigger
// Lifecycle; eventing Destination Resolution).
func TestNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, consumers := controllertest.New(t, newTrigger()), newConsumers()
		resolver := destination.New(t.Context(), destination.Options{Informers: w.Factory, ClusterDomain: "cluster.local"})
		r := &Reconciler{Client: w.Client.EventingV1(), Recorder: w.Recorder, Clock: w.Clock, Consumers: consumers}
		w.Accounts = controllertest.NewAccounts(false)
		controller, err := r.Controller(w.Factory.Eventing().V1(), w.Accounts.Source, resolver)
		if err != nil {
			t.Fatal(err)
		}
		w.Run(controller, func() {
			client := w.Client.EventingV1()
			expect := func(what, ready string) {
				t.Helper()
				synctest.Wait()
				trigger, err := client.Triggers("default").Get(t.Context(), key.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := brief(trigger.Status.Conditions)["Ready"]; got != ready {
					t.Errorf("%s: Ready is %q, want %q", what, got, ready)
				}
			}
			must := func(_ any, err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			expect("alone", "False BrokerDoesNotExist")
			must(client.Brokers("default").Create(t.Context(), newBroker(), metav1.CreateOptions{}))
			expect("with a Broker", "False SubscriberNotFound")
			must(w.Client.ServingV1().Services("default").Create(t.Context(), service("billing", "http://billing"), metav1.CreateOptions{}))
			expect("with a subscriber", "True")
			must(nil, client.Brokers("default").Delete(t.Context(), "orders", metav1.DeleteOptions{}))
			expect("without the Broker", "False BrokerDoesNotExist")
			must(client.Brokers("default").Create(t.Context(), newBroker(), metav1.CreateOptions{}))
			expect("with the Broker again", "True")
			must(nil, client.Triggers("default").Delete(t.Context(), key.Name, metav1.DeleteOptions{}))
			synctest.Wait()
			if len(consumers.set) > 0 {
				t.Errorf("gone: %v", consumers.set)
			}
		})
	})
}

// TestGrant checks that events are sent to another namespace as long as it grants that.
func TestGrant(t *testing.T) {
	grants := func(to string) *servingv1.Service {
		s := service("billing", "http://theirs")
		s.Namespace, s.Annotations = "other", map[string]string{destination.AllowFromAnnotationKey: to}
		return s
	}
	f := start(t, newBroker(), newTrigger(func(trigger *eventingv1.Trigger) { trigger.Spec.Subscriber.Ref.Namespace = "other" }))
	for _, step := range []struct {
		name   string
		change func()
		// ready is Ready, and consumer the destination of events.
		ready, consumer string
	}{
		{"missing", func() {}, "False SubscriberNotGranted", ""},
		{"not granted", func() { f.add(t, grants("team-a,team-b")) }, "False SubscriberNotGranted", ""},
		{"granted", func() { f.replace(t, grants("team-a, default")) }, "True", "http://theirs"},
		{"missing temporarily", func() { f.lose(t) }, "False SubscriberNotGranted", ""},
		{"granted to all", func() { f.add(t, grants("*")) }, "True", "http://theirs"},
		{"withdrawn", func() { f.replace(t, grants("")) }, "False SubscriberNotGranted", ""},
	} {
		step.change()
		status := f.reconcile(t)
		if got := brief(status.Conditions)["Ready"]; got != step.ready {
			t.Errorf("%s: Ready is %q, want %q", step.name, got, step.ready)
		}
		want := eventing.Endpoint{URL: step.consumer, Unresolved: step.consumer == ""}
		if got, set := f.consumers.set[Key(key)]; !set || got.Subscriber != want {
			t.Errorf("%s: events go to %+v, want %+v", step.name, got.Subscriber, want)
		}
	}
}

// replace replaces the Service of the other namespace.
func (f *fixture) replace(t *testing.T, service *servingv1.Service) {
	t.Helper()
	if err := f.Client.Tracker().Update(services, service, service.Namespace); err != nil {
		t.Fatal(err)
	}
}

// lose deletes the Service of the other namespace.
func (f *fixture) lose(t *testing.T) {
	t.Helper()
	if err := f.Client.Tracker().Delete(services, "other", "billing"); err != nil {
		t.Fatal(err)
	}
}
