package subscription

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// hostChannel has the fields that channels of all kinds share.
type hostChannel struct {
	Spec struct {
		Subscribers []duckv1.SubscriberSpec `json:"subscribers"`
		Delivery    *duckv1.DeliverySpec    `json:"delivery"`
	} `json:"spec"`
	Status struct {
		duckv1.Status         `json:",inline"`
		duckv1.DeliveryStatus `json:",inline"`
		Subscribers           []duckv1.SubscriberStatus `json:"subscribers"`
	} `json:"status"`
}

// parse reads an object of the host cluster.
func parse(obj *unstructured.Unstructured) (*hostChannel, error) {
	var c hostChannel
	return &c, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &c)
}

// listed returns the entry of a Subscription in spec.subscribers, or nil.
func (c *hostChannel) listed(uid types.UID) *duckv1.SubscriberSpec {
	for i := range c.Spec.Subscribers {
		if c.Spec.Subscribers[i].UID == uid {
			return &c.Spec.Subscribers[i]
		}
	}
	return nil
}

// added returns the state of a Subscription that a channelable reports, for the condition AddedToChannel.
func (c *hostChannel) added(subscription *messagingv1.Subscription) duckv1.Condition {
	const t = messagingv1.SubscriptionConditionAddedToChannel
	for _, s := range c.Status.Subscribers {
		if s.UID != origin.UID(subscription.UID) {
			continue
		}
		// Not every kind reports the observed generation.
		observed := max(s.ObservedGeneration, s.Generation)
		switch {
		case observed != 0 && observed < subscription.Generation:
			return reconciler.Unknown(t, ReasonNotAdded, "The channel has not observed the latest change of the Subscription yet.")
		case s.Ready == corev1.ConditionTrue:
			return reconciler.True(t)
		case s.Ready == corev1.ConditionFalse:
			return reconciler.False(t, ReasonNotAdded, "The channel does not send events to the Subscription: "+s.Message)
		}
	}
	return reconciler.Unknown(t, ReasonNotAdded, "The channel does not report the Subscription as ready yet.")
}

// foreignChannel returns the channel of the host cluster that sends events to a Subscription: the one that it refers to, or the
// object that implements the Channel that it refers to. foreign is false if this server sends the events, or if the channel is not
// known.
func (r *Reconciler) foreignChannel(subscription *messagingv1.Subscription) (reference duckv1.KReference, foreign bool, err error) {
	reference = subscription.Spec.Channel
	reference.Namespace = cmp.Or(reference.Namespace, subscription.Namespace)
	kind, name := channelable.Of(subscription)
	if kind != channelable.Kind {
		return reference, true, nil
	}
	to, found, err := reconciler.Listed(r.Channels.Channels(name.Namespace), name.Name)
	if err != nil || !found {
		return reference, false, err
	}
	if _, served := streams.OfChannel(to); served || r.Host == nil {
		return reference, false, nil
	}
	return channelable.BackingReference(to), true, nil
}

// subscribeToForeign lists a Subscription in a channel of the host cluster, whose own controller sends the events, if writes is
// true. It returns the stored Subscription. The caller retries after failed once it has written the findings; err means that the
// findings are incomplete.
func (r *Reconciler) subscribeToForeign(ctx context.Context, refs *destination.References, subscription *messagingv1.Subscription, reference duckv1.KReference, writes bool, found *findings,
) (stored *messagingv1.Subscription, failed, err error) {
	name := types.NamespacedName{Namespace: subscription.Namespace, Name: reference.Name}
	obj, err := refs.HostObject(ctx, &reference)
	if fault, ok := destination.AsUnresolved(err); ok {
		reason := "Channel" + fault.Reason
		if fault.Reason == destination.ReasonNotFound {
			reason = ReasonChannelDoesNotExist
		}
		found.missing(reason, fault.Message)
		return subscription, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read %s %q: %w", reference.Kind, name, err)
	}
	if obj.GetDeletionTimestamp() != nil || obj.GetNamespace() != subscription.Namespace {
		found.missing(ReasonChannelDoesNotExist, fmt.Sprintf("%s %q does not exist", reference.Kind, name))
		return subscription, nil, nil
	}
	to, err := parse(obj)
	if err != nil {
		found.missing(ReasonNotChannelable, fmt.Sprintf("%s %q has not the fields of a channel: %v", reference.Kind, name, err))
		return subscription, nil, nil
	}
	found.repeat(reference.Kind, name, to.Status.Conditions.Get(duckv1.ConditionReady))
	found.inherit(subscription, to.Status.DeliveryStatus, to.Spec.Delivery)
	listed := to.listed(origin.UID(subscription.UID))
	subscriber := found.subscriber(subscription, to.Spec.Delivery, listed)
	switch {
	case !writes:
		return subscription, nil, nil
	case found.denied:
		// The target of a refused reference, unlike a missing object, must not receive events in the meantime.
		found.notResolved()
		if listed == nil {
			return subscription, nil, nil
		}
		return subscription, r.unlist(ctx, subscription), nil
	case subscriber == nil && listed == nil:
		found.notResolved()
		return subscription, nil, nil
	case subscriber == nil || listed != nil && sameSubscriber(*listed, *subscriber):
		found.added = to.added(subscription)
		return subscription, nil, nil
	}
	// The entry must not outlive the Subscription.
	subscription, err = r.hold(ctx, subscription)
	if err != nil {
		return nil, nil, err
	}
	written, err := r.enlist(ctx, subscription, obj, *subscriber)
	switch {
	case reconciler.Refused(err):
		found.added = reconciler.False(messagingv1.SubscriptionConditionAddedToChannel, ReasonNotAdded, err.Error())
		return subscription, err, nil
	case err != nil:
		return nil, nil, err
	case written:
		// The status of the channel is about the previous entry.
		found.notAdded(ReasonNotAdded, "The channel has not observed the latest change of the Subscription yet.")
	default:
		found.added = to.added(subscription)
	}
	return subscription, nil, nil
}

// sameSubscriber compares two entries in channels. Older kinds have no names of subscribers.
func sameSubscriber(listed, subscriber duckv1.SubscriberSpec) bool {
	listed.Name, subscriber.Name = nil, nil
	// Their UIDs differ only after a restore.
	subscriber.UID = listed.UID
	return equality.Semantic.DeepEqual(listed, subscriber)
}

// enlist writes the entry of a Subscription into a channelable. It returns false if that changed nothing: a kind may
// not keep all fields of it.
func (r *Reconciler) enlist(ctx context.Context, subscription *messagingv1.Subscription, obj *unstructured.Unstructured, subscriber duckv1.SubscriberSpec) (bool, error) {
	uid := origin.UID(subscription.UID)
	subscriber.Name, subscriber.UID = nil, uid
	entry, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&subscriber)
	if err != nil {
		return false, fmt.Errorf("encode the entry of Subscription \"%s/%s\": %w", subscription.Namespace, subscription.Name, err)
	}
	channels, err := r.channels(obj.GroupVersionKind(), subscription.Namespace)
	if err != nil {
		return false, err
	}
	return replaceEntry(ctx, channels, obj, uid, entry)
}
