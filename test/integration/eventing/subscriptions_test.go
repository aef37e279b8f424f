package eventing

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
)

// subscriptionOption changes a Subscription that a test creates.
type subscriptionOption func(*messagingv1.Subscription)

// to sets the subscriber of a Subscription.
func to(d *duckv1.Destination) subscriptionOption {
	return func(s *messagingv1.Subscription) { s.Spec.Subscriber = d }
}

// replyTo sets the reply destination of a Subscription.
func replyTo(d *duckv1.Destination) subscriptionOption {
	return func(s *messagingv1.Subscription) { s.Spec.Reply = d }
}

// with sets the delivery options of a Subscription.
func with(spec *duckv1.DeliverySpec) subscriptionOption {
	return func(s *messagingv1.Subscription) { s.Spec.Delivery = spec }
}

// newSubscription returns a Subscription.
func newSubscription(namespace, channel, name string, options ...subscriptionOption) *messagingv1.Subscription {
	subscription := &messagingv1.Subscription{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: messagingv1.SubscriptionSpec{
			Channel: duckv1.KReference{APIVersion: messagingv1.SchemeGroupVersion.String(), Kind: "Channel", Name: channel},
		},
	}
	for _, option := range options {
		option(subscription)
	}
	return subscription
}

// subscribe creates a Subscription and waits until it is ready.
func (s *server) subscribe(t testing.TB, subscription *messagingv1.Subscription) *messagingv1.Subscription {
	t.Helper()
	create(t, s.Knative.MessagingV1().Subscriptions(subscription.Namespace), subscription)
	return s.subscriptionIs(t, subscription.Namespace, subscription.Name, corev1.ConditionTrue, "")
}

// subscriptionIs waits until a Subscription has the wanted Ready condition.
func (s *server) subscriptionIs(t testing.TB, namespace, name string, want corev1.ConditionStatus, reason string) *messagingv1.Subscription {
	t.Helper()
	subscriptions := s.Knative.MessagingV1().Subscriptions(namespace)
	return eventually(t, subscriptions, name, "is Ready "+string(want), func(s *messagingv1.Subscription) error {
		return condition(s, &s.Status.Status, duckv1.ConditionReady, want, reason)
	})
}

// uri is a destination by its URL.
func uri(url string) *duckv1.Destination { return &duckv1.Destination{URI: url} }

// ref is a destination by an object of the same namespace, and a URL relative to its address unless that is empty.
func ref(apiVersion, kind, name, relative string) *duckv1.Destination {
	return &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: apiVersion, Kind: kind, Name: name}, URI: relative}
}

// brokerRef is a destination by a Broker of the same namespace.
func brokerRef(name string) *duckv1.Destination {
	return ref(eventingv1.SchemeGroupVersion.String(), "Broker", name, "")
}

// channelRef is a destination by a Channel of the same namespace.
func channelRef(name string) *duckv1.Destination {
	return ref(messagingv1.SchemeGroupVersion.String(), "Channel", name, "")
}

// sentTo sets the subscriber of a Trigger.
func sentTo(d *duckv1.Destination) triggerOption {
	return func(t *eventingv1.Trigger) { t.Spec.Subscriber = *d }
}

// deadTo adds a dead letter sink to delivery options, which may be nil.
func deadTo(d *duckv1.Destination, options *duckv1.DeliverySpec) *duckv1.DeliverySpec {
	if options == nil {
		options = &duckv1.DeliverySpec{}
	}
	options.DeadLetterSink = d
	return options
}

// fetch returns an object that must exist.
func fetch[O any](t testing.TB, client getter[O], name string) O {
	t.Helper()
	object, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}
