package eventing

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// getter is the part of a typed client that reads one object.
type getter[O any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (O, error)
}

// creator is the part of a typed client that creates objects.
type creator[O any] interface {
	getter[O]
	Create(ctx context.Context, object O, options metav1.CreateOptions) (O, error)
}

// create stores an object.
func create[O any](t testing.TB, client creator[O], object O) O {
	t.Helper()
	stored, err := client.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// eventually waits until check accepts an object, and returns it.
func eventually[O any](t testing.TB, client getter[O], name, what string, check func(O) error) O {
	t.Helper()
	var object O
	harness.Eventually(t, fmt.Sprintf("%T %s %s", object, name, what), func() (err error) {
		if object, err = client.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		return check(object)
	})
	return object
}

// condition returns an error if a status lacks the wanted condition; the status must be of the current generation.
func condition(object metav1.Object, status *duckv1.Status, kind duckv1.ConditionType, want corev1.ConditionStatus, reason string) error {
	if status.ObservedGeneration != object.GetGeneration() {
		return fmt.Errorf("generation %d, observedGeneration %d", object.GetGeneration(), status.ObservedGeneration)
	}
	c := status.Conditions.Get(kind)
	if c == nil || c.Status != want || c.Reason != reason {
		return fmt.Errorf("want %s %s with reason %q, conditions are %+v", kind, want, reason, status.Conditions)
	}
	return nil
}

// broker creates a Broker, waits until it is ready, and returns its address.
func (s *server) broker(t testing.TB, namespace, name string) string {
	t.Helper()
	brokers := s.Knative.EventingV1().Brokers(namespace)
	create(t, brokers, &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	return eventually(t, brokers, name, "is ready", func(b *eventingv1.Broker) error {
		return condition(b, &b.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
	}).Status.Address.GetURL()
}

// channel creates a Channel, waits until it is ready, and returns its address.
func (s *server) channel(t testing.TB, namespace, name string) string {
	t.Helper()
	channels := s.Knative.MessagingV1().Channels(namespace)
	create(t, channels, &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	return eventually(t, channels, name, "is ready", func(c *messagingv1.Channel) error {
		return condition(c, &c.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
	}).Status.Address.GetURL()
}

// triggerOption changes a Trigger that a test creates.
type triggerOption func(*eventingv1.Trigger)

// ofType filters the events of a Trigger by one type.
func ofType(kind string) triggerOption {
	return func(t *eventingv1.Trigger) {
		t.Spec.Filter = &eventingv1.TriggerFilter{Attributes: map[string]string{"type": kind}}
	}
}

// delivered sets the delivery options of a Trigger.
func delivered(spec *duckv1.DeliverySpec) triggerOption {
	return func(t *eventingv1.Trigger) { t.Spec.Delivery = spec }
}

// labelled sets a label of a Trigger.
func labelled(key, value string) triggerOption {
	return func(t *eventingv1.Trigger) { metav1.SetMetaDataLabel(&t.ObjectMeta, key, value) }
}

// newTrigger returns a Trigger.
func newTrigger(namespace, broker, name, subscriber string, options ...triggerOption) *eventingv1.Trigger {
	trigger := &eventingv1.Trigger{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       eventingv1.TriggerSpec{Broker: broker, Subscriber: duckv1.Destination{URI: subscriber}},
	}
	for _, option := range options {
		option(trigger)
	}
	return trigger
}

// trigger creates a Trigger and waits until it is ready.
func (s *server) trigger(t testing.TB, namespace, broker, name, subscriber string, options ...triggerOption) {
	t.Helper()
	create(t, s.Knative.EventingV1().Triggers(namespace), newTrigger(namespace, broker, name, subscriber, options...))
	s.triggerIs(t, namespace, name, corev1.ConditionTrue, "")
}

// triggerIs waits until a Trigger has the wanted Ready condition.
func (s *server) triggerIs(t testing.TB, namespace, name string, want corev1.ConditionStatus, reason string) {
	t.Helper()
	eventually(t, s.Knative.EventingV1().Triggers(namespace), name, "is Ready "+string(want), func(trigger *eventingv1.Trigger) error {
		return condition(trigger, &trigger.Status.Status, duckv1.ConditionReady, want, reason)
	})
}

// subscription creates a Subscription to a Channel and waits until it is ready.
func (s *server) subscription(t testing.TB, namespace, channel, name, subscriber string) {
	t.Helper()
	subscriptions := s.Knative.MessagingV1().Subscriptions(namespace)
	create(t, subscriptions, &messagingv1.Subscription{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: messagingv1.SubscriptionSpec{
			Channel:    duckv1.KReference{APIVersion: messagingv1.SchemeGroupVersion.String(), Kind: "Channel", Name: channel},
			Subscriber: &duckv1.Destination{URI: subscriber},
		},
	})
	eventually(t, subscriptions, name, "is ready", func(s *messagingv1.Subscription) error {
		return condition(s, &s.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "")
	})
}

// retries returns delivery options with a number of retries after a constant delay.
func retries(count int32, delay string) *duckv1.DeliverySpec {
	policy := duckv1.BackoffPolicyLinear
	return &duckv1.DeliverySpec{Retry: &count, BackoffPolicy: &policy, BackoffDelay: &delay}
}
