package channel

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// subscribers returns the entries of a Channel for its Subscriptions, in the order of their UIDs. An entry has the latest
// state in which the Subscription was resolved; a Subscription that has never been resolved has no entry.
func (r *Reconciler) subscribers(channel *messagingv1.Channel) ([]duckv1.SubscriberSpec, []duckv1.SubscriberStatus, error) {
	id := channelable.ID(channelable.Kind, types.NamespacedName{Namespace: channel.Namespace, Name: channel.Name})
	subscriptions, err := reconciler.Indexed[*messagingv1.Subscription](r.SubscriptionIndex, channelable.SubscriptionsIndex, id)
	if err != nil {
		return nil, nil, err
	}
	subscriptions = slices.DeleteFunc(subscriptions, func(s *messagingv1.Subscription) bool { return s.DeletionTimestamp != nil })
	slices.SortFunc(subscriptions, func(a, b *messagingv1.Subscription) int { return strings.Compare(string(a.UID), string(b.UID)) })
	listed := make(map[types.UID]*duckv1.SubscriberSpec, len(channel.Spec.Subscribers))
	for i := range channel.Spec.Subscribers {
		listed[channel.Spec.Subscribers[i].UID] = &channel.Spec.Subscribers[i]
	}
	var specs []duckv1.SubscriberSpec
	var states []duckv1.SubscriberStatus
	for _, subscription := range subscriptions {
		entry := listed[subscription.UID]
		if current := entryOf(subscription, channel); current != nil && (entry == nil || !equality.Semantic.DeepEqual(*current, *entry)) {
			// An entry that the server would reject must not prevent the others from being listed.
			if len(current.Validate(nil)) == 0 {
				entry = current
			}
		}
		if entry == nil {
			continue
		}
		specs = append(specs, *entry)
		states = append(states, stateOf(subscription, entry))
	}
	return specs, states, nil
}

// entryOf returns the entry of a Subscription that is resolved, or nil.
func entryOf(subscription *messagingv1.Subscription, channel *messagingv1.Channel) *duckv1.SubscriberSpec {
	resolved := subscription.Status.Conditions.Get(messagingv1.SubscriptionConditionReferencesResolved)
	if subscription.Status.ObservedGeneration != subscription.Generation || resolved == nil || resolved.Status != corev1.ConditionTrue {
		return nil
	}
	addresses := &subscription.Status.PhysicalSubscription
	entry := channelable.Subscriber(subscription, addresses, channel.Spec.Delivery)
	if entry.Delivery != nil && entry.Delivery.DeadLetterSink != nil && addresses.DeadLetterSinkURI == "" {
		// The sink of the Channel is not resolved, or not yet in the status of the Subscription.
		return nil
	}
	return &entry
}

// stateOf returns whether events reach a Subscription, from the Subscription's own condition.
func stateOf(subscription *messagingv1.Subscription, entry *duckv1.SubscriberSpec) duckv1.SubscriberStatus {
	state := duckv1.SubscriberStatus{
		UID: subscription.UID, Generation: entry.Generation, ObservedGeneration: entry.Generation, Ready: corev1.ConditionUnknown,
	}
	if added := subscription.Status.Conditions.Get(messagingv1.SubscriptionConditionAddedToChannel); added != nil {
		state.Ready, state.Message = added.Status, added.Message
	}
	return state
}
