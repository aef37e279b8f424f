package eventing

import (
	"crypto/md5" //nolint:gosec // not for security
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestChannelStatus checks the conditions of a ready Channel of each kind, and that events posted to its address reach its
// Subscriptions (eventing Channel Lifecycle-1 to -4, -7 and -8, eventing Topology Based Routing-1, -2, -4 and -5, eventing
// Destination Resolution-6, eventing Channel-4, eventing Error Signalling-1, -2 and -8).
func TestChannelStatus(t *testing.T) {
	for _, kind := range []string{"", messagingv1.ChannelKindJetStream, messagingv1.ChannelKindInMemory} {
		t.Run("kind "+kind, func(t *testing.T) {
			ns := namespace()
			subscriber := harness.NewSink(t).At("/")
			channels := shared.Knative.MessagingV1().Channels(ns)
			channel := &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders"}}
			if kind != "" {
				channel.Spec.ChannelTemplate = &messagingv1.ChannelTemplateSpec{
					TypeMeta: metav1.TypeMeta{APIVersion: messagingv1.SchemeGroupVersion.String(), Kind: kind}}
			}
			create(t, channels, channel)
			stored := eventually(t, channels, "orders", "is ready", func(c *messagingv1.Channel) error {
				return condition(c, &c.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
			})
			if diff := cmp.Diff(map[duckv1.ConditionType]string{
				"Ready": "True", "BackingChannelReady": "True", "Addressable": "True", "DeadLetterSinkResolved": "True: DeadLetterSinkNotConfigured",
				"EventPoliciesReady": "True: OIDCDisabled",
			}, states(stored.Status.Conditions)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if got := stored.Annotations["messaging.knative.dev/subscribable"]; got != "v1" {
				t.Errorf("the annotation messaging.knative.dev/subscribable is %q, want v1", got)
			}
			want := kind
			if want == "" {
				want = messagingv1.ChannelKindJetStream
			}
			if got := stored.Spec.ChannelTemplate; got == nil || got.Kind != want {
				t.Errorf("spec.channelTemplate is %+v, want kind %s", got, want)
			}
			if got, want := stored.Status.Address.GetURL(), shared.Broker+"/channels/"+ns+"/orders"; got != want {
				t.Errorf("status.address.url is %q, want %q", got, want)
			}
			shared.subscribe(t, newSubscription(ns, "orders", "orders", to(uri(subscriber.URL))))
			mustPost(t, stored.Status.Address.GetURL(), event{id: "path", kind: "order"})
			byHost := binary("host", "{}", nil)
			byHost.host = "orders-kn-channel." + ns + ".svc.cluster.local"
			byHost.mustSend(t, shared.Broker)
			if err := subscriber.AwaitAll(bounded(t), []string{"path", "host"}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSubscribers checks that a Channel lists its Subscriptions with their states as they are resolved, changed and deleted
// (eventing Channel-1 and -2, eventing duckv1.SubscriberSpec-1; eventing duckv1.SubscriberStatus).
// It covers eventing duckv1.SubscriberSpec-2 to -5, eventing duckv1.SubscriberStatus-1 to -3.
func TestSubscribers(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	channels, subscriptions := shared.Knative.MessagingV1().Channels(ns), shared.Knative.MessagingV1().Subscriptions(ns)
	letters := shared.broker(t, ns, "letters")
	create(t, channels, &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders"},
		Spec: messagingv1.ChannelSpec{Delivery: deadTo(brokerRef("letters"), retries(3, "PT1S"))}})
	first := shared.subscribe(t, newSubscription(ns, "orders", "first", to(uri(sink.At("/a").URL)), replyTo(brokerRef("letters"))))
	second := shared.subscribe(t, newSubscription(ns, "orders", "second", to(uri(sink.At("/b").URL)), with(retries(7, "PT2S"))))
	create(t, subscriptions, newSubscription(ns, "orders", "unresolved", to(brokerRef("missing"))))
	shared.subscriptionIs(t, ns, "unresolved", corev1.ConditionFalse, "SubscriberNotFound")

	entry := func(s *messagingv1.Subscription, delivery *duckv1.DeliverySpec) duckv1.SubscriberSpec {
		return duckv1.SubscriberSpec{
			UID: s.UID, Name: &s.Name, Generation: s.Generation, SubscriberURI: s.Spec.Subscriber.URI,
			ReplyURI: s.Status.PhysicalSubscription.ReplyURI, Delivery: delivery,
		}
	}
	expect := func(want ...duckv1.SubscriberSpec) {
		t.Helper()
		slices.SortFunc(want, func(a, b duckv1.SubscriberSpec) int { return strings.Compare(string(a.UID), string(b.UID)) })
		var states []duckv1.SubscriberStatus
		for _, s := range want {
			states = append(states, duckv1.SubscriberStatus{UID: s.UID, Generation: s.Generation, ObservedGeneration: s.Generation, Ready: corev1.ConditionTrue})
		}
		eventually(t, channels, "orders", "lists its Subscriptions", func(c *messagingv1.Channel) error {
			if diff := cmp.Diff(want, c.Spec.Subscribers); diff != "" {
				return fmt.Errorf("spec.subscribers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(states, c.Status.Subscribers); diff != "" {
				return fmt.Errorf("status.subscribers (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	if first.Status.PhysicalSubscription.ReplyURI != letters {
		t.Errorf("the reply address is %q, want %q", first.Status.PhysicalSubscription.ReplyURI, letters)
	}
	inherited := deadTo(uri(letters), retries(3, "PT1S"))
	expect(entry(first, inherited), entry(second, retries(7, "PT2S")))

	harness.Edit(t, subscriptions, "second", func(s *messagingv1.Subscription) { s.Spec.Subscriber.URI = sink.At("/c").URL })
	second = shared.subscriptionIs(t, ns, "second", corev1.ConditionTrue, "")
	expect(entry(first, inherited), entry(second, retries(7, "PT2S")))

	if err := subscriptions.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(entry(second, retries(7, "PT2S")))
}

// TestSubscriptionBeforeChannel checks that a Subscription becomes ready once its Channel exists, and that the next event
// arrives (eventing Subscription Lifecycle-2 to -4 and -12, eventing Channel Lifecycle-2, eventing Subscription-3, eventing
// Error Signalling-6, -8 and -9).
func TestSubscriptionBeforeChannel(t *testing.T) {
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	channels, subscriptions := shared.Knative.MessagingV1().Channels(ns), shared.Knative.MessagingV1().Subscriptions(ns)
	create(t, subscriptions, newSubscription(ns, "orders", "orders", to(uri(subscriber.URL))))
	s := shared.subscriptionIs(t, ns, "orders", corev1.ConditionFalse, "ChannelDoesNotExist")
	if ready := s.Status.Conditions.Get(duckv1.ConditionReady); !strings.Contains(ready.Message, ns+"/orders") {
		t.Errorf("the message is %q", ready.Message)
	}
	for i := range 2 {
		address := shared.channel(t, ns, "orders")
		s = shared.subscriptionIs(t, ns, "orders", corev1.ConditionTrue, "")
		id := fmt.Sprint(i)
		mustPost(t, address, event{id: id, kind: "order"})
		if err := subscriber.AwaitAll(bounded(t), []string{id}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[duckv1.ConditionType]string{
			"Ready": "True", "ReferencesResolved": "True", "AddedToChannel": "True", "ChannelReady": "True",
			"OIDCIdentityCreated": "True: authentication-oidc feature disabled",
		}, states(s.Status.Conditions)); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
		if err := channels.Delete(t.Context(), "orders", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		shared.subscriptionIs(t, ns, "orders", corev1.ConditionFalse, "ChannelDoesNotExist")
	}
}

// TestSubscriptionOfUnreadyChannel checks that a Subscription is not ready while its Channel is not (eventing Subscription
// Lifecycle-2 and -3).
func TestSubscriptionOfUnreadyChannel(t *testing.T) {
	ns := namespace()
	create(t, shared.Knative.MessagingV1().Channels(ns), &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders"},
		Spec: messagingv1.ChannelSpec{Delivery: deadTo(brokerRef("letters"), nil)}})
	create(t, shared.Knative.MessagingV1().Subscriptions(ns), newSubscription(ns, "orders", "orders", to(uri("http://127.0.0.1:1/")), with(retries(1, "PT1S"))))
	s := eventually(t, shared.Knative.MessagingV1().Subscriptions(ns), "orders", "waits for its Channel", func(s *messagingv1.Subscription) error {
		ready := s.Status.Conditions.Get(messagingv1.SubscriptionConditionChannelReady)
		if ready == nil || ready.Status != corev1.ConditionFalse || !strings.Contains(ready.Message, ns+"/letters") {
			return fmt.Errorf("conditions are %+v", s.Status.Conditions)
		}
		return nil
	})
	if ready := s.Status.Conditions.Get(duckv1.ConditionReady); ready.Status != corev1.ConditionFalse {
		t.Errorf("Ready is %+v", ready)
	}
	shared.broker(t, ns, "letters")
	shared.subscriptionIs(t, ns, "orders", corev1.ConditionTrue, "")
}

// TestUnresolvedSubscription checks that subscriber, reply and dead letter sink of a Subscription are resolved and reported,
// and that a missing object makes the Subscription not ready, with a reason that names the object and an empty URI, until the
// object exists (eventing Subscription Lifecycle-4 to -7 and -13, eventing Destination Resolution-1 and -3 to -5; eventing
// PhysicalSubscriptionStatus).
// It covers eventing PhysicalSubscriptionStatus-1 to -3.
func TestUnresolvedSubscription(t *testing.T) {
	ns := namespace()
	shared.channel(t, ns, "orders")
	relative := ref(eventingv1.SchemeGroupVersion.String(), "Broker", "subscriber", "?a=b")
	create(t, shared.Knative.MessagingV1().Subscriptions(ns), newSubscription(ns, "orders", "orders", to(relative),
		replyTo(brokerRef("reply")), with(deadTo(channelRef("letters"), nil))))
	var want messagingv1.PhysicalSubscriptionStatus
	expect := func(status corev1.ConditionStatus, reason string, missing ...string) {
		t.Helper()
		s := shared.subscriptionIs(t, ns, "orders", status, reason)
		if diff := cmp.Diff(want, s.Status.PhysicalSubscription); diff != "" {
			t.Errorf("status.physicalSubscription (-want +got):\n%s", diff)
		}
		resolved := s.Status.Conditions.Get(messagingv1.SubscriptionConditionReferencesResolved)
		for _, object := range missing {
			if !strings.Contains(resolved.Message, object) {
				t.Errorf("ReferencesResolved is %+v, want one that names %s", resolved, object)
			}
		}
	}
	expect(corev1.ConditionFalse, "SubscriberNotFound", `Broker "`+ns+`/subscriber"`, `Broker "`+ns+`/reply"`, `Channel "`+ns+`/letters"`)
	want.SubscriberURI = shared.broker(t, ns, "subscriber") + "?a=b"
	expect(corev1.ConditionFalse, "ReplyNotFound", `Broker "`+ns+`/reply"`, `Channel "`+ns+`/letters"`)
	want.ReplyURI = shared.broker(t, ns, "reply")
	expect(corev1.ConditionFalse, "DeadLetterSinkNotFound", `Channel "`+ns+`/letters"`)
	want.DeadLetterSinkURI = shared.channel(t, ns, "letters")
	expect(corev1.ConditionTrue, "")
	if err := shared.Knative.EventingV1().Brokers(ns).Delete(t.Context(), "reply", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want.ReplyURI = ""
	expect(corev1.ConditionFalse, "ReplyNotFound", `Broker "`+ns+`/reply"`)
	harness.Edit(t, shared.Knative.MessagingV1().Subscriptions(ns), "orders", func(s *messagingv1.Subscription) { s.Spec.Reply = nil })
	expect(corev1.ConditionTrue, "")
}

// TestChannelRecreated checks that the address of a deleted Channel is not found, and that a new Channel of the same name
// starts without events (eventing Channel Lifecycle-1).
func TestChannelRecreated(t *testing.T) {
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	subscriber.AnswerCode(http.StatusServiceUnavailable)
	address := shared.channel(t, ns, "orders")
	shared.subscribe(t, newSubscription(ns, "orders", "orders", to(uri(subscriber.URL)), with(retries(1000, "PT0.05S"))))
	mustPost(t, address, event{id: "old", kind: "order"})
	if err := subscriber.AwaitAttempts(bounded(t), func(attempts map[string]int) error {
		if attempts["old"] == 0 {
			return fmt.Errorf("the event was not sent")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := shared.Knative.MessagingV1().Channels(ns).Delete(t.Context(), "orders", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	shared.subscriptionIs(t, ns, "orders", corev1.ConditionFalse, "ChannelDoesNotExist")
	harness.Eventually(t, "the address is not found", func() error {
		if a := binary("lost", "{}", nil).send(t, address); a.code != http.StatusNotFound {
			return fmt.Errorf("%d %s", a.code, a.body)
		}
		return nil
	})
	subscriber.Answer(nil)
	if recreated := shared.channel(t, ns, "orders"); recreated != address {
		t.Errorf("the address is %s, and was %s", recreated, address)
	}
	shared.subscriptionIs(t, ns, "orders", corev1.ConditionTrue, "")
	mustPost(t, address, event{id: "new", kind: "order"})
	if err := subscriber.AwaitAll(bounded(t), []string{"new"}); err != nil {
		t.Fatal(err)
	}
	if n := subscriber.Received()["old"]; n > 0 {
		t.Error("an event of the deleted Channel was delivered for the new one")
	}
}

// TestLongChannelName checks that a Channel may have the longest name of an object: its host name is shortened as in Knative's
// releases, and its events reach its own Subscriptions (eventing Channel Lifecycle-1).
func TestLongChannelName(t *testing.T) {
	ns := namespace()
	channels := shared.Knative.MessagingV1().Channels(ns)
	for _, last := range []string{"a", "b"} {
		name := strings.Repeat("orders-", 9)[:62] + last
		subscriber := harness.NewSink(t).At("/")
		create(t, channels, &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}})
		eventually(t, channels, name, "is ready", func(c *messagingv1.Channel) error {
			return condition(c, &c.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
		})
		shared.subscribe(t, newSubscription(ns, name, last, to(uri(subscriber.URL))))
		byHost := binary(last, "{}", nil)
		byHost.host = fmt.Sprintf("%s%x-kn-channel.%s.svc.cluster.local", name[:20], md5.Sum([]byte(name)), ns) //nolint:gosec // not for security
		byHost.mustSend(t, shared.Broker)
		if err := subscriber.AwaitAll(bounded(t), []string{last}); err != nil {
			t.Error(err)
		}
	}
}

// TestTemplateDelivery checks that delivery options of the template apply to Subscriptions without their own, unless the
// Channel has its own.
func TestTemplateDelivery(t *testing.T) {
	ns := namespace()
	dead, subscriber := harness.NewSink(t).At("/"), harness.NewSink(t).At("/")
	subscriber.AnswerCode(http.StatusInternalServerError)
	channels := shared.Knative.MessagingV1().Channels(ns)
	channel := &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders"}}
	channel.Spec.ChannelTemplate = &messagingv1.ChannelTemplateSpec{
		TypeMeta: metav1.TypeMeta{APIVersion: messagingv1.SchemeGroupVersion.String(), Kind: messagingv1.ChannelKindInMemory},
		Spec:     &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"delivery":{"retry":0,"deadLetterSink":{"uri":%q}}}`, dead.URL)},
	}
	create(t, channels, channel)
	stored := eventually(t, channels, "orders", "is ready", func(c *messagingv1.Channel) error {
		return condition(c, &c.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
	})
	if got := stored.Status.DeadLetterSinkURI; got != dead.URL {
		t.Errorf("status.deadLetterSinkUri is %q, want %q", got, dead.URL)
	}
	shared.subscribe(t, newSubscription(ns, "orders", "orders", to(uri(subscriber.URL))))
	mustPost(t, stored.Status.Address.GetURL(), event{id: "1", kind: "order"})
	if err := dead.AwaitAll(bounded(t), []string{"1"}); err != nil {
		t.Error(err)
	}
}
