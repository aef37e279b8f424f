package subscription

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channel"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// subscribe has the broker send the events of one of our Channels to a Subscription. again is why to try again once
// the findings are written down; err means that nothing new is known.
func (r *Reconciler) subscribe(ctx context.Context, subscription *messagingv1.Subscription, name types.NamespacedName, found *findings) (again, err error) {
	key := types.NamespacedName{Namespace: subscription.Namespace, Name: subscription.Name}
	to, ok, err := controllers.Listed(r.Channels.Channels(name.Namespace), name.Name)
	if err != nil {
		return nil, err
	}
	if !ok {
		found.missing(ReasonChannelDoesNotExist, fmt.Sprintf("Channel %q does not exist", name))
		return nil, r.remove(ctx, key)
	}
	found.repeat("Channel", name, to.Status.Conditions.Get(duckv1.ConditionReady))
	stream, served := channel.StreamOf(to)
	if !served {
		found.added = controllers.False(messagingv1.SubscriptionConditionAddedToChannel, ReasonChannelNotServed,
			fmt.Sprintf("Channel %q asks for a kind of channel that another controller serves: %s", name, templateOf(to)))
		return nil, r.remove(ctx, key)
	}
	found.inherit(subscription, to.Status.DeliveryStatus, to.Spec.Delivery, to.Status.Conditions)

	if err := r.removeOther(ctx, key, subscription.UID, stream.UID); err != nil {
		return nil, err
	}
	if found.denied {
		// Unlike what is missing for a time.
		found.notResolved()
		return nil, r.remove(ctx, key)
	}
	had, has := r.had(key)
	// The Channel says what this process has not known yet.
	before := channel.Listed(to, subscription.UID)
	if has {
		before = &had.subscriber
	}
	subscriber := found.subscriber(subscription, to.Spec.Delivery, before)
	backing := to.Status.Conditions.Get(messagingv1.ChannelConditionBackingChannelReady)
	switch {
	case subscriber == nil && !has:
		found.notResolved()
		return nil, nil
	case !has && (backing == nil || backing.Status != corev1.ConditionTrue):
		found.notAdded(ReasonChannelNotReady, fmt.Sprintf("Channel %q does not keep events yet", name))
		return nil, nil
	case subscriber != nil:
		if err := r.hand(ctx, key, handover{consumerOf(subscription, stream, subscriber), *subscriber}); err != nil {
			found.added = controllers.False(messagingv1.SubscriptionConditionAddedToChannel, ReasonNotAdded,
				fmt.Sprintf("Channel %q does not send events to the Subscription: %v", name, err))
			return err, nil
		}
	}
	found.added = controllers.True(messagingv1.SubscriptionConditionAddedToChannel)
	return nil, nil
}

func templateOf(to *messagingv1.Channel) string {
	if to.Spec.ChannelTemplate == nil {
		return "none"
	}
	return to.Spec.ChannelTemplate.APIVersion + " " + to.Spec.ChannelTemplate.Kind
}

// consumerOf is a Subscription as the broker is to know it.
func consumerOf(subscription *messagingv1.Subscription, stream eventing.Stream, subscriber *duckv1.SubscriberSpec) eventing.Consumer {
	consumer := eventing.Consumer{
		Key:        keyOf(types.NamespacedName{Namespace: subscription.Namespace, Name: subscription.Name}),
		UID:        subscription.UID,
		Stream:     stream.Key,
		StreamUID:  stream.UID,
		Subscriber: eventing.Endpoint{URL: subscriber.SubscriberURI, CACerts: ptr.Deref(subscriber.SubscriberCACerts, "")},
		Reply:      eventing.Endpoint{URL: subscriber.ReplyURI, CACerts: ptr.Deref(subscriber.ReplyCACerts, "")},
		Delivery:   eventing.DeliveryOf(subscriber.Delivery),
		Ordered:    duckv1.IsOrdered(subscription.Annotations),
	}
	if sink := deadLetterSink(subscriber.Delivery); sink != nil {
		consumer.DeadLetter = eventing.Endpoint{URL: sink.URI, CACerts: ptr.Deref(sink.CACerts, "")}
	}
	return consumer
}

// handover is what the broker was handed for a Subscription, and what that was made from.
type handover struct {
	consumer   eventing.Consumer
	subscriber duckv1.SubscriberSpec
}

// had returns what the broker has of a Subscription, as far as this process handed it over.
func (r *Reconciler) had(key types.NamespacedName) (handover, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	had, ok := r.handed[key]
	return had, ok
}

// hand gives the broker what it does not have in this form.
func (r *Reconciler) hand(ctx context.Context, key types.NamespacedName, over handover) error {
	if had, ok := r.had(key); ok && reflect.DeepEqual(had.consumer, over.consumer) {
		return nil
	}
	if err := r.Consumers.SetConsumer(ctx, over.consumer); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.handed == nil {
		r.handed = map[types.NamespacedName]handover{}
	}
	r.handed[key] = over
	return nil
}

// remove takes a Subscription from the broker, which may have it from before this process began.
func (r *Reconciler) remove(ctx context.Context, key types.NamespacedName) error {
	if err := r.Consumers.RemoveConsumer(ctx, keyOf(key)); err != nil {
		return fmt.Errorf("removing the consumer of %s: %w", keyOf(key), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.handed, key)
	return nil
}

// removeOther takes from the broker what it was handed for an earlier Subscription of the name, or for an earlier stream.
func (r *Reconciler) removeOther(ctx context.Context, key types.NamespacedName, subscription, stream types.UID) error {
	if had, has := r.had(key); !has || had.consumer.UID == subscription && had.consumer.StreamUID == stream {
		return nil
	}
	return r.remove(ctx, key)
}
