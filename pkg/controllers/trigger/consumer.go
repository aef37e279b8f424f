package trigger

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// deliveryOf returns the delivery options in force for a Trigger: its own, or all options of its Broker, if that
// exists.
func deliveryOf(trigger *eventingv1.Trigger, parent *eventingv1.Broker) *duckv1.DeliverySpec {
	if !trigger.Spec.Delivery.IsEmpty() || parent == nil {
		return trigger.Spec.Delivery
	}
	return parent.Spec.Delivery
}

// subscribe sets the consumer of a Trigger, and records the condition SubscriptionReady in found. It returns an error to retry.
//
// Every Trigger of a Broker is a consumer once it was reconciled, whether or not its destinations have addresses: the Broker keeps its
// events until they do. So state of an earlier process is not needed.
func (r *Reconciler) subscribe(ctx context.Context, trigger *eventingv1.Trigger, parent *eventingv1.Broker, found *findings) error {
	const t = eventingv1.TriggerConditionSubscriptionReady
	if parent == nil {
		message := "The Broker does not exist."
		if found.broker.Reason == ReasonLinksDisabled {
			message = found.broker.Message
		}
		found.subscription = reconciler.False(t, ReasonNotSubscribed, message)
		return r.remove(ctx, types.NamespacedName{Namespace: trigger.Namespace, Name: trigger.Name})
	}
	consumer := consumerOf(trigger, parent, found)
	err := r.Consumers.SetConsumer(ctx, consumer)
	switch {
	case err == nil:
		found.subscription = reconciler.True(t)
		return nil
	case !configured(parent):
		// The Trigger is reconciled again when the Broker reports that it is.
		found.subscription = reconciler.False(t, ReasonNotSubscribed, "The Broker does not accept events yet.")
		return nil
	default:
		found.subscription = reconciler.False(t, ReasonNotSubscribed, fmt.Sprintf("Subscribing to the Broker failed: %v", err))
		return fmt.Errorf("set consumer of %s: %w", consumer.Key, err)
	}
}

// consumerOf returns the consumer of a Trigger.
func consumerOf(trigger *eventingv1.Trigger, parent *eventingv1.Broker, found *findings) eventing.Consumer {
	consumer := eventing.Consumer{
		Key:       Key(types.NamespacedName{Namespace: trigger.Namespace, Name: trigger.Name}),
		UID:       origin.UID(trigger.UID),
		Stream:    streams.BrokerKey(types.NamespacedName{Namespace: parent.Namespace, Name: parent.Name}),
		StreamUID: origin.UID(parent.UID),
		Filters:   streams.FiltersOf(trigger.Spec.Filters),
		Subscriber: eventing.Endpoint{
			URL: found.subscriber.URL, CACerts: ptr.Deref(found.subscriber.CACerts, ""), Audience: found.account.Audience(found.subscriber.Audience),
		},
		DeadLetter: eventing.Endpoint{
			URL: found.deadLetter.DeadLetterSinkURI, CACerts: ptr.Deref(found.deadLetter.DeadLetterSinkCACerts, ""),
			Audience: found.account.Audience(found.deadLetter.DeadLetterSinkAudience),
		},
		Delivery: streams.DeliveryOf(deliveryOf(trigger, parent)),
		Ordered:  duckv1.IsOrdered(trigger.Annotations),
		Account:  found.account.Account,

		NoDeadLetterStore: !duckv1.StoresDeadLetters(trigger.Annotations, parent.Annotations),
	}
	if found.subscriberResolved.Status != corev1.ConditionTrue {
		consumer.Subscriber = eventing.Endpoint{Unresolved: true}
	}
	if found.deadLetterResolved.Status != corev1.ConditionTrue {
		consumer.DeadLetter = eventing.Endpoint{Unresolved: true}
	}
	if trigger.Spec.Filter != nil {
		consumer.Attributes = trigger.Spec.Filter.Attributes
	}
	return consumer
}

// remove removes the consumer of a Trigger.
func (r *Reconciler) remove(ctx context.Context, key types.NamespacedName) error {
	if err := r.Consumers.RemoveConsumer(ctx, Key(key)); err != nil {
		return fmt.Errorf("remove consumer of %s: %w", Key(key), err)
	}
	return nil
}
