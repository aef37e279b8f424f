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
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// subscribe sets the consumer of a Subscription to a Channel of this server, whether or not its destinations have addresses: the
// Channel keeps its events until they do. The caller retries after failed once it has written the findings; err means that the
// findings are incomplete.
func (r *Reconciler) subscribe(ctx context.Context, subscription *messagingv1.Subscription, name types.NamespacedName, found *findings) (failed, err error) {
	key := types.NamespacedName{Namespace: subscription.Namespace, Name: subscription.Name}
	to, ok, err := reconciler.Listed(r.Channels.Channels(name.Namespace), name.Name)
	if err != nil {
		return nil, err
	}
	if !ok {
		found.missing(ReasonChannelDoesNotExist, fmt.Sprintf("Channel %q does not exist", name))
		return nil, r.remove(ctx, key)
	}
	found.repeat("Channel", name, to.Status.Conditions.Get(duckv1.ConditionReady))
	stream, served := streams.OfChannel(to)
	if !served {
		found.added = reconciler.False(messagingv1.SubscriptionConditionAddedToChannel, ReasonChannelNotServed,
			fmt.Sprintf("Channel %q asks for a kind of channel that another controller serves: %s", name, templateOf(to)))
		return nil, r.remove(ctx, key)
	}
	found.inherit(subscription, to.Status.DeliveryStatus, to.Spec.Delivery)

	if err := r.removeOther(ctx, key, origin.UID(subscription.UID), stream.UID); err != nil {
		return nil, err
	}
	subscriber := channelable.Subscriber(subscription, &found.addresses, to.Spec.Delivery)
	consumer := consumerOf(subscription, stream, &subscriber, &found.account)
	consumer.NoDeadLetterStore = !duckv1.StoresDeadLetters(subscription.Annotations, to.Annotations)
	err = r.set(ctx, key, consumer)
	backing := to.Status.Conditions.Get(messagingv1.ChannelConditionBackingChannelReady)
	switch {
	case err == nil:
		found.added = reconciler.True(messagingv1.SubscriptionConditionAddedToChannel)
		return nil, nil
	case backing == nil || backing.Status != corev1.ConditionTrue:
		// The Subscription is reconciled again when the Channel reports that it is.
		found.notAdded(ReasonChannelNotReady, fmt.Sprintf("Channel %q does not keep events yet", name))
		return nil, nil
	default:
		found.added = reconciler.False(messagingv1.SubscriptionConditionAddedToChannel, ReasonNotAdded,
			fmt.Sprintf("Channel %q does not send events to the Subscription: %v", name, err))
		return err, nil
	}
}

func templateOf(to *messagingv1.Channel) string {
	if to.Spec.ChannelTemplate == nil {
		return "none"
	}
	return to.Spec.ChannelTemplate.APIVersion + " " + to.Spec.ChannelTemplate.Kind
}

// consumerOf returns the consumer of a Subscription. Destinations that have no address in subscriber are unresolved.
func consumerOf(subscription *messagingv1.Subscription, stream eventing.Stream, subscriber *duckv1.SubscriberSpec, account *senderaccount.Found) eventing.Consumer {
	consumer := eventing.Consumer{
		Key:        keyOf(types.NamespacedName{Namespace: subscription.Namespace, Name: subscription.Name}),
		UID:        origin.UID(subscription.UID),
		Stream:     stream.Key,
		StreamUID:  stream.UID,
		Subscriber: endpoint(subscription.Spec.Subscriber, subscriber.SubscriberURI, subscriber.SubscriberCACerts, account.Audience(subscriber.SubscriberAudience)),
		Reply:      endpoint(subscription.Spec.Reply, subscriber.ReplyURI, subscriber.ReplyCACerts, account.Audience(subscriber.ReplyAudience)),
		Delivery:   streams.DeliveryOf(subscriber.Delivery),
		Ordered:    duckv1.IsOrdered(subscription.Annotations),
		Account:    account.Account,
	}
	if sink := deadLetterSink(subscriber.Delivery); sink != nil {
		consumer.DeadLetter = endpoint(sink, sink.URI, sink.CACerts, account.Audience(sink.Audience))
	}
	return consumer
}

// endpoint returns a destination, which may be nil, at its address, which may be empty.
func endpoint(to *duckv1.Destination, url string, caCerts *string, audience string) eventing.Endpoint {
	if url == "" {
		return eventing.Endpoint{Unresolved: to != nil}
	}
	return eventing.Endpoint{URL: url, CACerts: ptr.Deref(caCerts, ""), Audience: audience}
}

// current returns the consumer that this process set for a Subscription, if any.
func (r *Reconciler) current(key types.NamespacedName) (eventing.Consumer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	consumer, ok := r.consumers[key]
	return consumer, ok
}

// set sets the consumer of a Subscription, unless it is the current one.
func (r *Reconciler) set(ctx context.Context, key types.NamespacedName, consumer eventing.Consumer) error {
	if current, ok := r.current(key); ok && reflect.DeepEqual(current, consumer) {
		return nil
	}
	if err := r.Consumers.SetConsumer(ctx, consumer); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.consumers == nil {
		r.consumers = map[types.NamespacedName]eventing.Consumer{}
	}
	r.consumers[key] = consumer
	return nil
}

// remove removes the consumer of a Subscription from the broker, which may have it from an earlier process.
func (r *Reconciler) remove(ctx context.Context, key types.NamespacedName) error {
	if err := r.Consumers.RemoveConsumer(ctx, keyOf(key)); err != nil {
		return fmt.Errorf("remove consumer of %s: %w", keyOf(key), err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.consumers, key)
	return nil
}

// removeOther removes the consumer that was set for an earlier Subscription of the name, or for an earlier stream.
func (r *Reconciler) removeOther(ctx context.Context, key types.NamespacedName, subscription, stream types.UID) error {
	if current, ok := r.current(key); !ok || current.UID == subscription && current.StreamUID == stream {
		return nil
	}
	return r.remove(ctx, key)
}
