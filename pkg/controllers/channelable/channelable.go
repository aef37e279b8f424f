// Package channelable maps Subscriptions to the channels of any kind that they refer to, and to their entries in channels. The
// controllers of Channels and of Subscriptions share it.
package channelable

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// SubscriptionsIndex is the name of the index of Subscriptions by the channel that they refer to; see ID.
const SubscriptionsIndex = "subscription-channel"

// Kind is the kind of the channels of this server.
var Kind = messagingv1.SchemeGroupVersion.WithKind("Channel").GroupKind()

// ID names a channel of any kind, for SubscriptionsIndex. Versions of a kind are the same.
func ID(kind schema.GroupKind, channel types.NamespacedName) string {
	return kind.String() + "/" + channel.String()
}

// Of returns kind, namespace and name of the channel that a Subscription refers to.
func Of(subscription *messagingv1.Subscription) (schema.GroupKind, types.NamespacedName) {
	reference := &subscription.Spec.Channel
	return schema.FromAPIVersionAndKind(reference.APIVersion, reference.Kind).GroupKind(),
		subscription.ChannelName()
}

// IndexSubscriptions adds SubscriptionsIndex to an informer of Subscriptions, unless it is present. Call it before the
// informer starts.
func IndexSubscriptions(informer cache.SharedIndexInformer) error {
	return reconciler.AddIndex(informer, SubscriptionsIndex, func(obj any) ([]string, error) {
		if subscription, ok := obj.(*messagingv1.Subscription); ok {
			return []string{ID(Of(subscription))}, nil
		}
		return nil, nil
	})
}

// SubscriptionsOf returns a function that returns the keys of the Subscriptions that refer to an object of the given kind as their
// channel. index keeps SubscriptionsIndex.
func SubscriptionsOf(index cache.Indexer, kind schema.GroupKind) func(obj metav1.Object) []types.NamespacedName {
	return func(obj metav1.Object) []types.NamespacedName {
		name := types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
		subscriptions, err := reconciler.Indexed[*messagingv1.Subscription](index, SubscriptionsIndex, ID(kind, name))
		if err != nil {
			return nil
		}
		keys := make([]types.NamespacedName, 0, len(subscriptions))
		for _, subscription := range subscriptions {
			keys = append(keys, types.NamespacedName{Namespace: subscription.Namespace, Name: subscription.Name})
		}
		return keys
	}
}

// BackingReference returns the reference to the object that implements a Channel whose template names a kind that another
// controller serves.
func BackingReference(channel *messagingv1.Channel) duckv1.KReference {
	reference := duckv1.KReference{Namespace: channel.Namespace, Name: channel.Name}
	if template := channel.Spec.ChannelTemplate; template != nil {
		reference.APIVersion, reference.Kind = template.APIVersion, template.Kind
	}
	return reference
}

// Subscriber returns the entry of a Subscription in its channel: with resolved addresses, and with the delivery options of the
// Subscription, or those in delivery if it has none (eventing duckv1.SubscriberSpec).
func Subscriber(subscription *messagingv1.Subscription, addresses *messagingv1.PhysicalSubscriptionStatus, delivery *duckv1.DeliverySpec) duckv1.SubscriberSpec {
	if !subscription.Spec.Delivery.IsEmpty() {
		delivery = subscription.Spec.Delivery
	}
	if delivery != nil && delivery.DeadLetterSink != nil {
		delivery = ptr.To(*delivery)
		delivery.DeadLetterSink = &duckv1.Destination{
			URI: addresses.DeadLetterSinkURI, CACerts: addresses.DeadLetterSinkCACerts, Audience: addresses.DeadLetterSinkAudience,
		}
	}
	return duckv1.SubscriberSpec{
		UID:                subscription.UID,
		Name:               ptr.To(subscription.Name),
		Generation:         subscription.Generation,
		SubscriberURI:      addresses.SubscriberURI,
		SubscriberCACerts:  addresses.SubscriberCACerts,
		SubscriberAudience: addresses.SubscriberAudience,
		ReplyURI:           addresses.ReplyURI,
		ReplyCACerts:       addresses.ReplyCACerts,
		ReplyAudience:      addresses.ReplyAudience,
		Delivery:           delivery,
	}
}
