package eventing

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestSubscriberMissingAtStart checks that an event answered 202 reaches a Trigger whose subscriber did not exist when the
// server started, like every event before and after (eventing Broker Lifecycle-2, eventing Event Delivery-2).
func TestSubscriberMissingAtStart(t *testing.T) {
	ns := namespace()
	replies := harness.NewSink(t).At("/")
	s := start(t, t.TempDir())
	address := s.broker(t, ns, "orders")
	deploy := func() { s.application(t, ns, "sink", corev1.EnvVar{Name: "REPLY_TYPE", Value: "reply"}) }
	deploy()
	s.trigger(t, ns, "orders", "t", "", ofType("order"), sentTo(ref("serving.knative.dev/v1", "Service", "sink", "")))
	s.trigger(t, ns, "orders", "replies", replies.URL, ofType("reply"))
	if err := s.Knative.ServingV1().Services(ns).Delete(t.Context(), "sink", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.triggerIs(t, ns, "t", corev1.ConditionFalse, "SubscriberNotFound")
	mustPost(t, address, event{id: "A", kind: "order"})
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.restart(); err != nil {
		t.Fatal(err)
	}
	mustPost(t, address, event{id: "B", kind: "order"})
	deploy()
	mustPost(t, address, event{id: "C", kind: "order"})
	if err := replies.Await(bounded(t), 3); err != nil {
		t.Error(err)
	}
	got := map[string]bool{}
	for _, d := range replies.Deliveries() {
		got[read(t, d).data] = true
	}
	want := []string{`{"replyTo":"A"}`, `{"replyTo":"B"}`, `{"replyTo":"C"}`}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("replies (-want +got):\n%s", diff)
	}
}

// TestDestinationsMissingAtStart checks the same for a Trigger that never had a subscriber, for one without its dead letter
// sink, which keeps dead letters for it and sends events to the subscriber, and for a Subscription (eventing Channel
// Lifecycle-2, eventing DeliverySpec).
func TestDestinationsMissingAtStart(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	later, refusing, dead, channeled := sink.At("/later"), sink.At("/refusing"), sink.At("/dead"), sink.At("/channeled")
	refusing.AnswerCode(http.StatusBadRequest)
	s := start(t, t.TempDir())
	orders, channel := s.broker(t, ns, "orders"), s.channel(t, ns, "orders")
	triggers := s.Knative.EventingV1().Triggers(ns)
	create(t, triggers, newTrigger(ns, "orders", "later", "", sentTo(channelRef("later"))))
	create(t, triggers, newTrigger(ns, "orders", "refusing", refusing.URL, delivered(deadTo(channelRef("dead"), nil))))
	create(t, s.Knative.MessagingV1().Subscriptions(ns), newSubscription(ns, "orders", "channeled", to(channelRef("channeled"))))
	s.triggerIs(t, ns, "later", corev1.ConditionFalse, "SubscriberNotFound")
	s.triggerIs(t, ns, "refusing", corev1.ConditionFalse, "DeadLetterSinkNotFound")
	s.subscriptionIs(t, ns, "channeled", corev1.ConditionFalse, "SubscriberNotFound")
	const restarts = 2
	var want []string
	for i := range restarts {
		id := fmt.Sprint("before-", i)
		want = append(want, id)
		mustPost(t, orders, event{id: id, kind: "order"})
		mustPost(t, channel, event{id: id, kind: "order"})
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.restart(); err != nil {
			t.Fatal(err)
		}
	}
	want = append(want, "after")
	mustPost(t, orders, event{id: "after", kind: "order"})
	mustPost(t, channel, event{id: "after", kind: "order"})
	triggers = s.Knative.EventingV1().Triggers(ns)
	harness.Edit(t, triggers, "later", func(trigger *eventingv1.Trigger) { trigger.Spec.Subscriber = *uri(later.URL) })
	harness.Edit(t, triggers, "refusing", func(trigger *eventingv1.Trigger) { trigger.Spec.Delivery.DeadLetterSink = uri(dead.URL) })
	harness.Edit(t, s.Knative.MessagingV1().Subscriptions(ns), "channeled", func(s *messagingv1.Subscription) { s.Spec.Subscriber = uri(channeled.URL) })
	for _, subscriber := range []*harness.Subscriber{later, dead, channeled} {
		if err := subscriber.AwaitAll(bounded(t), want); err != nil {
			t.Error(err)
		}
	}
	for id, n := range refusing.Attempts() {
		if n != 1 {
			t.Errorf("event %s was sent %d times to the rejecting subscriber, want once", id, n)
		}
	}
}
