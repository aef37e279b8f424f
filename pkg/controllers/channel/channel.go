// Package channel reconciles Channels: the data plane keeps their events, an address accepts them, and each Channel lists
// its Subscriptions (eventing Channel Lifecycle).
package channel

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/authorization"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	messagingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/messaging/v1"
	messaginginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/messaging/v1"
	messaginglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/messaging/v1"
)

// ReasonStreamFailed means that the data plane cannot keep the Channel's events.
const ReasonStreamFailed = "StreamFailed"

// gathering is the time for which changes of Subscriptions are collected before their Channel is written, so that creating a thousand of
// them does not write the Channel a thousand times.
const gathering = 20 * time.Millisecond

// dependents are the conditions that Ready depends on; the first one that fails determines the reason.
var dependents = []duckv1.ConditionType{
	messagingv1.ChannelConditionBackingChannelReady,
	messagingv1.ChannelConditionAddressable,
	destination.ConditionDeadLetterSinkResolved,
	duckv1.ConditionEventPoliciesReady,
}

// foreignDependents are the conditions that Ready of a Channel of another implementation depends on. It applies no EventPolicies.
var foreignDependents = dependents[:len(dependents)-1]

// Reconciler creates the streams of Channels, lists their Subscriptions in them, and writes their status.
type Reconciler struct {
	Client   messagingclient.MessagingV1Interface
	Channels messaginglisters.ChannelLister
	// SubscriptionIndex is the indexer of the Subscriptions' informer, with channelable.SubscriptionsIndex.
	SubscriptionIndex cache.Indexer
	Streams           eventing.Streams
	// Addresses returns the addresses at which a stream accepts events.
	Addresses func(eventing.Key) duckv1.AddressStatus
	// Services make the host names of addresses resolve; nil if the addresses need no host names.
	Services Services
	// Host reads the objects that implement Channels with other templates; nil without a host cluster.
	Host *destination.Host
	// Policies finds the EventPolicies of Channels.
	Policies *authorization.Policies
	Tracker  *destination.Tracker
	Recorder record.EventRecorder
	Clock    clock.PassiveClock
}

// Controller returns the controller that runs r, and sets Channels, SubscriptionIndex, Policies and Tracker.
func (r *Reconciler) Controller(informers messaginginformers.Interface, policies authorization.Source, resolver *destination.Resolver) (*reconciler.Controller, error) {
	channels, subscriptions := informers.Channels(), informers.Subscriptions()
	if err := channelable.IndexSubscriptions(subscriptions.Informer()); err != nil {
		return nil, err
	}
	r.Channels, r.SubscriptionIndex = channels.Lister(), subscriptions.Informer().GetIndexer()
	controller := reconciler.New("channel", r)
	var err error
	if r.Tracker, err = resolver.Track(controller); err != nil {
		return nil, err
	}
	r.Policies, err = policies.Of(messagingv1.SchemeGroupVersion.WithKind("Channel").GroupKind(), controller, channels.Informer())
	if err != nil {
		return nil, err
	}
	if err := controller.Watch(channels.Informer(), reconciler.KeyOf); err != nil {
		return nil, err
	}
	err = controller.Watch(subscriptions.Informer(), func(obj metav1.Object) []types.NamespacedName {
		if subscription, ok := obj.(*messagingv1.Subscription); ok {
			if kind, name := channelable.Of(subscription); kind == channelable.Kind {
				controller.EnqueueAfter(name, gathering)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if r.Services != nil {
		if err := r.Services.Track(controller); err != nil {
			return nil, err
		}
	}
	return controller, nil
}

// Reconcile applies a Channel to its stream, core Service, list of subscribers and status, in this order, so that the status
// promises only working addresses. Replicas that do not write set the stream only. A Channel whose template names another
// kind is implemented by an object of that kind.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	channel, ok, err := reconciler.Listed(r.Channels.Channels(key.Namespace), key.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	var stream eventing.Stream
	if ok {
		stream, ok = streams.OfChannel(channel)
	}
	if !ok {
		if channel == nil {
			r.Tracker.Forget(key)
		}
		if r.Services != nil {
			r.Services.Forget(key)
		}
		if err := r.Streams.RemoveStream(ctx, streams.ChannelKey(key)); err != nil {
			return reconciler.Result{}, fmt.Errorf("remove stream of %s: %w", streams.ChannelKey(key), err)
		}
		if channel != nil {
			return reconciler.Result{}, r.reconcileForeign(ctx, request, channel)
		}
		return reconciler.Result{}, nil
	}
	policies, err := r.Policies.Of(channel)
	if err != nil {
		return reconciler.Result{}, err
	}
	stream.Senders = policies.Senders
	failed := r.Streams.SetStream(ctx, stream)
	refs := r.Tracker.Begin(key)
	deadLetter, resolved, err := refs.DeadLetterSink(ctx, channel.Spec.Delivery)
	if err != nil {
		return reconciler.Result{}, fmt.Errorf("resolve dead letter sink of %s: %w", stream.Key, err)
	}
	refs.End()
	if !request.Writes {
		return reconciler.Result{}, failed
	}

	subscribers, states, err := r.subscribers(channel)
	if err != nil {
		return reconciler.Result{}, err
	}
	// The list of Subscriptions is for readers: whether events are accepted does not depend on it.
	channel, unlisted := r.list(ctx, channel, subscribers)
	if apierrors.IsConflict(unlisted) {
		return reconciler.Result{}, unlisted
	}
	updated := *channel
	updated.Status = *channel.Status.DeepCopy()
	updated.Status.Subscribers, updated.Status.DeliveryStatus, updated.Status.Channel = states, deadLetter, nil
	updated.Status.AppliedEventPoliciesStatus = policies.Status
	found := []duckv1.Condition{resolved, policies.Condition}
	var unplaced error
	if failed != nil {
		// A published address stays, so that senders retry.
		found = append(found, reconciler.False(messagingv1.ChannelConditionBackingChannelReady, ReasonStreamFailed,
			fmt.Sprintf("The Channel's events cannot be kept: %v", failed)))
	} else {
		var addressable duckv1.Condition
		if addressable, unplaced = r.place(ctx, channel); apierrors.IsConflict(unplaced) {
			return reconciler.Result{}, unplaced
		}
		if addressable.Status == corev1.ConditionTrue {
			updated.Status.AddressStatus = r.Addresses(stream.Key)
			addressable = streams.Addressable(addressable.Type, updated.Status.AddressStatus)
		}
		found = append(found, reconciler.True(messagingv1.ChannelConditionBackingChannelReady), addressable)
	}
	reconciler.Observe(&updated.Status.Status, channel.Generation, metav1.NewTime(r.Clock.Now()), dependents, found...)
	written, err := request.Status.Write(ctx, reconciler.UpdateOf(r.Client.Channels(key.Namespace), channel, &updated))
	if written {
		reconciler.RecordReady(r.Recorder, &updated, channel.Status.Conditions, updated.Status.Conditions)
	}
	return reconciler.Result{}, errors.Join(failed, unplaced, unlisted, err)
}

// list writes the subscribers of a Channel, and returns it as it is stored.
func (r *Reconciler) list(ctx context.Context, channel *messagingv1.Channel, subscribers []duckv1.SubscriberSpec) (*messagingv1.Channel, error) {
	if equality.Semantic.DeepEqual(channel.Spec.Subscribers, subscribers) {
		return channel, nil
	}
	listing := *channel
	listing.Spec.Subscribers = subscribers
	stored, err := r.Client.Channels(channel.Namespace).Update(ctx, &listing, metav1.UpdateOptions{})
	if err != nil {
		return channel, fmt.Errorf("list Subscriptions in Channel \"%s/%s\": %w", channel.Namespace, channel.Name, err)
	}
	return stored, nil
}
