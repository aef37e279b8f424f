package subscription

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/deliveryhealth"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
)

// Reasons of the conditions of a Subscription, and of its Events. The reasons of references are the reasons of
// destination.Unresolved after Subscriber, Reply or DeadLetterSink.
const (
	ReasonChannelDoesNotExist = "ChannelDoesNotExist"
	ReasonChannelNotReady     = "ChannelNotReady"
	// ReasonChannelNotServed means that the Channel's template asks for a kind that another controller serves.
	ReasonChannelNotServed = "ChannelNotServed"
	// ReasonLinksDisabled means that the channel is in another namespace, which the settings do not allow.
	ReasonLinksDisabled = "CrossNamespaceLinksDisabled"
	// ReasonNotChannelable means that the referenced object does not accept subscribers.
	ReasonNotChannelable = "NotChannelable"
	// ReasonReferencesNotResolved means that the Subscription will be added to the channel once all addresses are known.
	ReasonReferencesNotResolved = "ReferencesNotResolved"
	// ReasonNotAdded means that the channel rejected the Subscription, or has not added it yet.
	ReasonNotAdded = "NotAdded"
	// ReasonSubscriberLeft is the reason of Events about a channel that may continue to send events to a deleted
	// Subscription.
	ReasonSubscriberLeft = "SubscriberLeft"
)

// dependents are the conditions that Ready depends on; the first one that fails determines the reason.
var dependents = []duckv1.ConditionType{
	messagingv1.SubscriptionConditionReferencesResolved,
	messagingv1.SubscriptionConditionAddedToChannel,
	messagingv1.SubscriptionConditionChannelReady,
	duckv1.ConditionOIDCIdentityCreated,
}

// findings determine a Subscription's status.
type findings struct {
	addresses messagingv1.PhysicalSubscriptionStatus
	// resolved, added and ready are the conditions that Ready depends on.
	resolved, added, ready duckv1.Condition
	// denied is true if a referenced object in another namespace does not grant the reference.
	denied bool
	// account authenticates deliveries.
	account senderaccount.Found
}

// resolve finds the addresses that a Subscription itself names (eventing Destination Resolution). Unresolved addresses
// are empty.
func resolve(ctx context.Context, refs *destination.References, subscription *messagingv1.Subscription) (findings, error) {
	found := findings{resolved: reconciler.True(messagingv1.SubscriptionConditionReferencesResolved)}
	addresses, spec := &found.addresses, &subscription.Spec
	var reason string
	var messages []string
	for _, reference := range []struct {
		role, field       string
		to                *duckv1.Destination
		url               *string
		caCerts, audience **string
	}{
		{"Subscriber", "spec.subscriber", spec.Subscriber, &addresses.SubscriberURI, &addresses.SubscriberCACerts, &addresses.SubscriberAudience},
		{"Reply", "spec.reply", spec.Reply, &addresses.ReplyURI, &addresses.ReplyCACerts, &addresses.ReplyAudience},
		{"DeadLetterSink", "spec.delivery.deadLetterSink", deadLetterSink(spec.Delivery), &addresses.DeadLetterSinkURI, &addresses.DeadLetterSinkCACerts, &addresses.DeadLetterSinkAudience},
	} {
		if reference.to == nil {
			continue
		}
		address, err := refs.Resolve(ctx, reference.to)
		if fault, ok := destination.AsUnresolved(err); ok {
			if reason == "" {
				reason = reference.role + fault.Reason
			}
			messages = append(messages, reference.field+": "+fault.Message)
			continue
		}
		if err != nil {
			return found, fmt.Errorf("resolve %s of Subscription \"%s/%s\": %w", reference.field, subscription.Namespace, subscription.Name, err)
		}
		*reference.url, *reference.caCerts, *reference.audience = address.URL, address.CACerts, address.Audience
	}
	found.denied = refs.Denied()
	if len(messages) > 0 {
		found.resolved = reconciler.False(found.resolved.Type, reason, strings.Join(messages, "; "))
	}
	return found, nil
}

// inherit uses the channel's dead letter sink if the Subscription has no delivery options of its own: the channel's options apply as a whole then.
func (f *findings) inherit(subscription *messagingv1.Subscription, sink duckv1.DeliveryStatus, delivery *duckv1.DeliverySpec) {
	if subscription.Spec.Delivery.IsEmpty() && deadLetterSink(delivery) != nil {
		f.addresses.DeliveryStatus = sink
	}
}

// notResolved records that events are not forwarded because not all addresses are known. Missing destinations and destinations in another
// namespace without a grant have the same text, so that it does not disclose the objects of other namespaces.
func (f *findings) notResolved() {
	f.notAdded(ReasonReferencesNotResolved, "The Subscription is added to the channel when its references are resolved.")
}

// subscriber returns the entry of the Subscription for a channel of the host cluster, or nil while an address has never been known. An
// address that is no longer known keeps its value in the channel, which may be nil, so that the channel retries events instead of
// skipping the Subscription.
func (f *findings) subscriber(subscription *messagingv1.Subscription, delivery *duckv1.DeliverySpec, before *duckv1.SubscriberSpec) *duckv1.SubscriberSpec {
	subscriber := channelable.Subscriber(subscription, &f.addresses, delivery)
	if before == nil {
		before = &duckv1.SubscriberSpec{}
	}
	if subscription.Spec.Subscriber != nil && subscriber.SubscriberURI == "" {
		subscriber.SubscriberURI, subscriber.SubscriberCACerts, subscriber.SubscriberAudience = before.SubscriberURI, before.SubscriberCACerts, before.SubscriberAudience
		if subscriber.SubscriberURI == "" {
			return nil
		}
	}
	if subscription.Spec.Reply != nil && subscriber.ReplyURI == "" {
		subscriber.ReplyURI, subscriber.ReplyCACerts, subscriber.ReplyAudience = before.ReplyURI, before.ReplyCACerts, before.ReplyAudience
		if subscriber.ReplyURI == "" {
			return nil
		}
	}
	if sink := deadLetterSink(subscriber.Delivery); sink != nil && sink.URI == "" {
		known := deadLetterSink(before.Delivery)
		if known == nil || known.URI == "" {
			return nil
		}
		*sink = *known
	}
	return &subscriber
}

// deadLetterSink returns the dead letter sink of delivery options, or nil.
func deadLetterSink(delivery *duckv1.DeliverySpec) *duckv1.Destination {
	if delivery == nil {
		return nil
	}
	return delivery.DeadLetterSink
}

// missing records that the channel does not exist.
func (f *findings) missing(reason, message string) {
	f.added = reconciler.False(messagingv1.SubscriptionConditionAddedToChannel, reason, message)
	f.ready = reconciler.False(messagingv1.SubscriptionConditionChannelReady, reason, message)
}

// notAdded records that the Subscription has not been added to the channel yet.
func (f *findings) notAdded(reason, message string) {
	f.added = reconciler.Unknown(messagingv1.SubscriptionConditionAddedToChannel, reason, message)
}

// repeat records the Ready condition of a channel, which may be missing. While the channel is not ready, its Subscriptions are not ready either.
func (f *findings) repeat(kind string, name types.NamespacedName, ready *duckv1.Condition) {
	if ready != nil && ready.Status == corev1.ConditionTrue {
		f.ready = reconciler.True(messagingv1.SubscriptionConditionChannelReady)
		return
	}
	message := fmt.Sprintf("%s %q is not ready", kind, name)
	if ready != nil {
		for _, detail := range []string{ready.Reason, ready.Message} {
			if detail != "" {
				message += ": " + detail
			}
		}
	}
	f.ready = reconciler.False(messagingv1.SubscriptionConditionChannelReady, ReasonChannelNotReady, message)
}

// write stores the status that follows from findings, unless it is stored already.
func (r *Reconciler) write(ctx context.Context, writer *reconciler.StatusWriter, observed *messagingv1.Subscription, found *findings) error {
	key, now := types.NamespacedName{Namespace: observed.Namespace, Name: observed.Name}, metav1.NewTime(r.Clock.Now())
	updated := *observed
	updated.Status = *observed.Status.DeepCopy()
	status := &updated.Status
	status.PhysicalSubscription = found.addresses
	status.Auth = found.account.Auth
	reconciler.Observe(&status.Status, observed.Generation, now, dependents, found.resolved, found.added, found.ready, found.account.Condition)
	deliveryhealth.Observe(&status.Conditions, r.Consumers.Health(keyOf(key)), now)
	written, err := writer.Write(ctx, reconciler.UpdateOf(r.Client.Subscriptions(key.Namespace), observed, &updated))
	if written {
		reconciler.RecordReady(r.Recorder, &updated, observed.Status.Conditions, status.Conditions)
		deliveryhealth.Record(r.Recorder, &updated, observed.Status.Conditions, status.Conditions)
	}
	return err
}
