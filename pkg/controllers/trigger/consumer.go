package trigger

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// deliveryOf returns the delivery options in force for a Trigger: its own, or as a whole those of its Broker, if there
// is one.
func deliveryOf(trigger *eventingv1.Trigger, parent *eventingv1.Broker) *duckv1.DeliverySpec {
	if !trigger.Spec.Delivery.IsEmpty() || parent == nil {
		return trigger.Spec.Delivery
	}
	return parent.Spec.Delivery
}

// notAddressed is why there is no subscription without addresses. It says the same of destinations that are missing and of
// those in another namespace that do not grant it, which is not to be found out this way.
const notAddressed = "Not all destinations of events have an address."

// subscribe brings the consumer in line with a Trigger, and notes in findings whether it is. It returns why to try
// again.
//
// Addresses that are not to be found any more do not end deliveries: while a subscriber is made anew, events are
// sent to where it was, and kept until it is back. A Trigger is no consumer before it had all its addresses once.
func (r *Reconciler) subscribe(ctx context.Context, trigger *eventingv1.Trigger, parent *eventingv1.Broker, found *findings) error {
	key := types.NamespacedName{Namespace: trigger.Namespace, Name: trigger.Name}
	const t = eventingv1.TriggerConditionSubscriptionReady
	if parent == nil {
		found.subscription = controllers.False(t, ReasonNotSubscribed, "There is no Broker to get events from.")
		return r.remove(ctx, key)
	}
	if found.denied {
		// Unlike what is missing for a time.
		found.subscription = controllers.False(t, ReasonNotSubscribed, notAddressed)
		return r.remove(ctx, key)
	}
	before, known := r.last(key)
	if known && before.UID != trigger.UID {
		// It belongs to an earlier Trigger of this name, which is gone.
		if err := r.remove(ctx, key); err != nil {
			found.subscription = controllers.False(t, ReasonNotSubscribed, err.Error())
			return err
		}
		before = eventing.Consumer{}
	}
	if !configured(parent) {
		found.subscription = controllers.False(t, ReasonNotSubscribed, "The Broker does not accept events yet.")
		return nil
	}
	consumer := consumerOf(trigger, parent)
	consumer.Subscriber = eventing.Endpoint{URL: found.subscriber.URL, CACerts: ptr.Deref(found.subscriber.CACerts, "")}
	consumer.DeadLetter = eventing.Endpoint{URL: found.deadLetter.DeadLetterSinkURI, CACerts: ptr.Deref(found.deadLetter.DeadLetterSinkCACerts, "")}
	if found.subscriberResolved.Status != corev1.ConditionTrue {
		consumer.Subscriber = before.Subscriber
	}
	lost := found.deadLetterResolved.Status != corev1.ConditionTrue
	if lost {
		consumer.DeadLetter = before.DeadLetter
	}
	if consumer.Subscriber.URL == "" || lost && consumer.DeadLetter.URL == "" {
		found.subscription = controllers.False(t, ReasonNotSubscribed, notAddressed)
		return nil
	}
	if err := r.Consumers.SetConsumer(ctx, consumer); err != nil {
		found.subscription = controllers.False(t, ReasonNotSubscribed, fmt.Sprintf("Subscribing to the Broker failed: %v", err))
		return fmt.Errorf("setting the consumer of %s: %w", consumer.Key, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handed == nil {
		r.handed = map[types.NamespacedName]eventing.Consumer{}
	}
	r.handed[key] = consumer
	found.subscription = controllers.True(t)
	return nil
}

// consumerOf returns the consumer of a Trigger but for its addresses.
func consumerOf(trigger *eventingv1.Trigger, parent *eventingv1.Broker) eventing.Consumer {
	consumer := eventing.Consumer{
		Key:       Key(types.NamespacedName{Namespace: trigger.Namespace, Name: trigger.Name}),
		UID:       trigger.UID,
		Stream:    broker.Key(types.NamespacedName{Namespace: parent.Namespace, Name: parent.Name}),
		StreamUID: parent.UID,
		Filters:   trigger.Spec.Filters,
		Delivery:  eventing.DeliveryOf(deliveryOf(trigger, parent)),
		Ordered:   duckv1.IsOrdered(trigger.Annotations),
	}
	if trigger.Spec.Filter != nil {
		consumer.Attributes = trigger.Spec.Filter.Attributes
	}
	return consumer
}

// last returns the consumer that was handed over last for a Trigger, if there is one.
func (r *Reconciler) last(key types.NamespacedName) (eventing.Consumer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	consumer, ok := r.handed[key]
	return consumer, ok
}

// remove ends the consumer of a Trigger.
func (r *Reconciler) remove(ctx context.Context, key types.NamespacedName) error {
	if err := r.Consumers.RemoveConsumer(ctx, Key(key)); err != nil {
		return fmt.Errorf("removing the consumer of %s: %w", Key(key), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.handed, key)
	return nil
}
