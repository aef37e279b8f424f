package controllers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
)

// SubscriptionsByChannel is the name of the index of Subscriptions by the channel that they refer to; see ChannelID.
const SubscriptionsByChannel = "subscription-channel"

// ChannelKind is the kind of our own channels.
var ChannelKind = messagingv1.SchemeGroupVersion.WithKind("Channel").GroupKind()

// ChannelID names a channel of any kind, for the index SubscriptionsByChannel. Versions of a kind are the same.
func ChannelID(kind schema.GroupKind, channel types.NamespacedName) string {
	return kind.String() + "/" + channel.String()
}

// ChannelOf returns kind and name of the channel that a Subscription refers to.
func ChannelOf(subscription *messagingv1.Subscription) (schema.GroupKind, types.NamespacedName) {
	reference := &subscription.Spec.Channel
	return schema.FromAPIVersionAndKind(reference.APIVersion, reference.Kind).GroupKind(),
		types.NamespacedName{Namespace: subscription.Namespace, Name: reference.Name}
}

// IndexSubscriptionsByChannel has an informer of Subscriptions keep that index. Several controllers may ask for it.
// Call it before the informer starts.
func IndexSubscriptionsByChannel(informer cache.SharedIndexInformer) error {
	return AddIndex(informer, SubscriptionsByChannel, func(obj any) ([]string, error) {
		if subscription, ok := obj.(*messagingv1.Subscription); ok {
			return []string{ChannelID(ChannelOf(subscription))}, nil
		}
		return nil, nil
	})
}

// SubscriptionsOf returns a function that gives the keys of the Subscriptions that refer to an object as their
// channel, if it is of the kind. index keeps SubscriptionsByChannel.
func SubscriptionsOf(index cache.Indexer, kind schema.GroupKind) func(obj metav1.Object) []types.NamespacedName {
	return func(obj metav1.Object) []types.NamespacedName {
		name := types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}
		subscriptions, err := Indexed[*messagingv1.Subscription](index, SubscriptionsByChannel, ChannelID(kind, name))
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
