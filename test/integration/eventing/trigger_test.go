package eventing

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestTriggerBeforeBroker checks that a Trigger becomes ready once its Broker exists, and that the next event arrives (eventing
// Trigger Lifecycle-1 and -7 to -9, eventing Broker Lifecycle-2, eventing Trigger-4, eventing Error Signalling-6 and -8).
func TestTriggerBeforeBroker(t *testing.T) {
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	triggers := shared.Knative.EventingV1().Triggers(ns)
	create(t, triggers, newTrigger(ns, "orders", "orders", subscriber.URL))
	shared.triggerIs(t, ns, "orders", corev1.ConditionFalse, "BrokerDoesNotExist")
	if ready := fetch(t, triggers, "orders").Status.Conditions.Get(duckv1.ConditionReady); !strings.Contains(ready.Message, ns+"/orders") {
		t.Errorf("the message is %q", ready.Message)
	}
	address := shared.broker(t, ns, "orders")
	shared.triggerIs(t, ns, "orders", corev1.ConditionTrue, "")
	mustPost(t, address, event{id: "1", kind: "order"})
	if err := subscriber.AwaitAll(bounded(t), []string{"1"}); err != nil {
		t.Error(err)
	}
	status := fetch(t, triggers, "orders").Status
	if diff := cmp.Diff(map[duckv1.ConditionType]string{
		"Ready": "True", "BrokerReady": "True", "SubscriptionReady": "True", "DependencyReady": "True", "SubscriberResolved": "True",
		"DeadLetterSinkResolved": "True: DeadLetterSinkNotConfigured", "OIDCIdentityCreated": "True: authentication-oidc feature disabled",
	}, states(status.Conditions)); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if status.SubscriberURI != subscriber.URL {
		t.Errorf("status.subscriberUri is %q, want %q", status.SubscriberURI, subscriber.URL)
	}
}

// TestTriggerOfUnreadyBroker checks that a Trigger is not ready while its Broker is not, with the Broker's reason (eventing
// Trigger Lifecycle-8 and -9).
func TestTriggerOfUnreadyBroker(t *testing.T) {
	ns := namespace()
	create(t, shared.Knative.EventingV1().Brokers(ns), &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders"},
		Spec: eventingv1.BrokerSpec{Delivery: deadTo(brokerRef("letters"), nil)}})
	create(t, shared.Knative.EventingV1().Triggers(ns), newTrigger(ns, "orders", "orders", "http://127.0.0.1:1/"))
	eventually(t, shared.Knative.EventingV1().Triggers(ns), "orders", "waits for its Broker", func(trigger *eventingv1.Trigger) error {
		if err := condition(trigger, &trigger.Status.Status, duckv1.ConditionReady, corev1.ConditionFalse, "DeadLetterSinkNotFound"); err != nil {
			return err
		}
		return condition(trigger, &trigger.Status.Status, "BrokerReady", corev1.ConditionFalse, "DeadLetterSinkNotFound")
	})
	shared.broker(t, ns, "letters")
	shared.triggerIs(t, ns, "orders", corev1.ConditionTrue, "")
}

// TestTriggerUpdates checks that filter, subscriber and delivery of a Trigger may be changed, and apply once it is ready again
// (eventing Trigger Lifecycle-7 and -10).
func TestTriggerUpdates(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	before, after, dead := sink.At("/before"), sink.At("/after"), sink.At("/dead")
	after.Answer(func(d *harness.Delivery) harness.Answer {
		if d.ID == "refused" {
			return harness.Answer{Code: http.StatusServiceUnavailable}
		}
		return harness.Answer{}
	})
	triggers := shared.Knative.EventingV1().Triggers(ns)
	address := shared.broker(t, ns, "orders")
	shared.trigger(t, ns, "orders", "orders", before.URL, ofType("order"))
	mustPost(t, address, event{id: "1", kind: "order"}, event{id: "2", kind: "invoice"})
	if err := before.AwaitAll(bounded(t), []string{"1"}); err != nil {
		t.Fatal(err)
	}
	harness.Edit(t, triggers, "orders", func(t *eventingv1.Trigger) {
		t.Spec.Filter.Attributes["type"] = "invoice"
		t.Spec.Subscriber.URI = after.URL
		t.Spec.Delivery = deadTo(uri(dead.URL), retries(1, "PT0.01S"))
	})
	shared.subscriberIs(t, ns, "orders", after.URL)
	mustPost(t, address, event{id: "3", kind: "order"}, event{id: "refused", kind: "invoice"}, event{id: "4", kind: "invoice"})
	if err := after.AwaitAll(bounded(t), []string{"4"}); err != nil {
		t.Fatal(err)
	}
	if err := dead.AwaitAll(bounded(t), []string{"refused"}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		*harness.Subscriber
		want map[string]int
	}{{before, map[string]int{"1": 1}}, {after, map[string]int{"refused": 2, "4": 1}}, {dead, map[string]int{"refused": 1}}} {
		if diff := cmp.Diff(tt.want, tt.Attempts()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.URL, diff)
		}
	}
}

// TestTriggerDependency checks that a Trigger waits for the object that its annotation names, and reports its state: Unknown
// while that has no conditions (eventing Error Signalling-5 to -8 and -10).
func TestTriggerDependency(t *testing.T) {
	ns := namespace()
	shared.broker(t, ns, "orders")
	brokers := shared.Knative.EventingV1().Brokers(ns)
	trigger := newTrigger(ns, "orders", "orders", "http://127.0.0.1:1/")
	metav1.SetMetaDataAnnotation(&trigger.ObjectMeta, eventingv1.DependencyAnnotationKey,
		`{"apiVersion":"eventing.knative.dev/v1","kind":"Broker","name":"source"}`)
	create(t, shared.Knative.EventingV1().Triggers(ns), trigger)
	shared.triggerIs(t, ns, "orders", corev1.ConditionFalse, "DependencyDoesNotExist")

	foreign := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "source"}}
	metav1.SetMetaDataAnnotation(&foreign.ObjectMeta, eventingv1.BrokerClassAnnotationKey, "ExampleBroker")
	create(t, brokers, foreign)
	shared.triggerIs(t, ns, "orders", corev1.ConditionUnknown, "DependencyNotReady")
	if err := brokers.Delete(t.Context(), "source", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	shared.triggerIs(t, ns, "orders", corev1.ConditionFalse, "DependencyDoesNotExist")

	create(t, brokers, &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "source"},
		Spec: eventingv1.BrokerSpec{Delivery: deadTo(brokerRef("letters"), nil)}})
	shared.triggerIs(t, ns, "orders", corev1.ConditionFalse, "DependencyNotReady")
	shared.broker(t, ns, "letters")
	shared.triggerIs(t, ns, "orders", corev1.ConditionTrue, "")
}

// TestDeliveryHealth checks that the status of a Trigger or Subscription, and an Event, report failing deliveries with reason
// and start time, not once per delivery (eventing Error Signalling).
func TestDeliveryHealth(t *testing.T) {
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	subscriber.AnswerCode(http.StatusServiceUnavailable)
	address, channel := shared.broker(t, ns, "orders"), shared.channel(t, ns, "orders")
	shared.trigger(t, ns, "orders", "orders", subscriber.URL, delivered(retries(1000, "PT0.05S")))
	shared.subscribe(t, newSubscription(ns, "orders", "orders", to(uri(subscriber.URL)), with(retries(1000, "PT0.05S"))))
	events := numbered("event", "order", 20)
	mustPost(t, address, events...)
	mustPost(t, channel, events...)
	triggers, subscriptions := shared.Knative.EventingV1().Triggers(ns), shared.Knative.MessagingV1().Subscriptions(ns)
	health := func(want corev1.ConditionStatus, reason string) (version string) {
		t.Helper()
		var message string
		harness.Eventually(t, "deliveries are reported", func() error {
			trigger, subscription := fetch(t, triggers, "orders"), fetch(t, subscriptions, "orders")
			version = trigger.ResourceVersion + " " + subscription.ResourceVersion
			for _, status := range []struct {
				metav1.Object
				*duckv1.Status
			}{{trigger, &trigger.Status.Status}, {subscription, &subscription.Status.Status}} {
				if err := condition(status.Object, status.Status, "DeliveryHealthy", want, reason); err != nil {
					return err
				}
				if err := condition(status.Object, status.Status, duckv1.ConditionReady, corev1.ConditionTrue, ""); err != nil {
					return err
				}
				message = status.Conditions.Get("DeliveryHealthy").Message
			}
			return nil
		})
		if want == corev1.ConditionFalse && (!strings.Contains(message, "503") || !strings.Contains(message, subscriber.URL) || !strings.Contains(message, "since 20")) {
			t.Errorf("the message is %q, want the subscriber, its response and the start time", message)
		}
		return version
	}
	version := health(corev1.ConditionFalse, "DeliveryFailing")
	seen := subscriber.Requests()
	if err := subscriber.AwaitAttempts(bounded(t), func(map[string]int) error {
		if n := subscriber.Requests() - seen; n < 50 {
			return fmt.Errorf("%d more failures", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if unchanged := health(corev1.ConditionFalse, "DeliveryFailing"); unchanged != version {
		t.Errorf("the objects were written although only more deliveries failed: versions %s, then %s", version, unchanged)
	}
	subscriber.Answer(nil)
	health(corev1.ConditionTrue, "")
	// Both kinds of Events, of both objects.
	harness.Eventually(t, "there are Events", func() error {
		response := shared.Do(t, harness.Request{Method: http.MethodGet, Path: "/api/v1/namespaces/" + ns + "/events"})
		if response.Code != http.StatusOK {
			t.Fatalf("GET events: %d %s", response.Code, response.Body)
		}
		for _, want := range []string{`"DeliveryFailing"`, `"DeliveryRecovered"`} {
			if n := strings.Count(string(response.Body), `"reason":`+want); n != 2 {
				return fmt.Errorf("%d with reason %s, want 2", n, want)
			}
		}
		return nil
	})
}
