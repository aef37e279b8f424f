// Package subscription reconciles Subscriptions: it resolves their addresses, adds them to their channel, and reports both in their
// status (eventing Subscription Lifecycle).
package subscription

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	messagingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/messaging/v1"
	messaginginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/messaging/v1"
	messaginglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// Reconciler adds Subscriptions to their channels, and writes the status of Subscriptions.
type Reconciler struct {
	Client        messagingclient.MessagingV1Interface
	Subscriptions messaginglisters.SubscriptionLister
	Channels      messaginglisters.ChannelLister
	Consumers     eventing.Consumers
	// Links reports whether Subscriptions may receive events of Channels of other namespaces. Call EnqueueLinked when that changes.
	Links func() bool
	// Accounts has the ServiceAccounts of Subscriptions. Controller sets it.
	Accounts *senderaccount.Accounts
	// Host reads channels of other kinds; nil without a host cluster.
	Host     *destination.Host
	Tracker  *destination.Tracker
	Recorder record.EventRecorder
	Clock    clock.PassiveClock

	// mu guards consumers, which the data plane has.
	mu        sync.Mutex
	consumers map[types.NamespacedName]eventing.Consumer
}

// Controller returns the controller that runs r, and sets Subscriptions, Channels, Accounts and Tracker. Call its Enqueue when the health of a
// consumer changes. Run it once the controller of Channels is Primed: Subscriptions to streams that are not set yet would become not ready.
func (r *Reconciler) Controller(informers messaginginformers.Interface, accounts senderaccount.Source, resolver *destination.Resolver) (*reconciler.Controller, error) {
	channels, subscriptions := informers.Channels(), informers.Subscriptions()
	if err := channelable.IndexSubscriptions(subscriptions.Informer()); err != nil {
		return nil, err
	}
	r.Subscriptions, r.Channels = subscriptions.Lister(), channels.Lister()
	controller := reconciler.New("subscription", r)
	var err error
	if r.Tracker, err = resolver.Track(controller); err != nil {
		return nil, err
	}
	if r.Accounts, err = accounts.Of(messagingv1.SchemeGroupVersion.WithKind("Subscription"), controller); err != nil {
		return nil, err
	}
	if err := controller.Watch(subscriptions.Informer(), reconciler.KeyOf); err != nil {
		return nil, err
	}
	// Channels change with each of their Subscriptions, which does not affect the others.
	err = controller.Watch(reconciler.Changes(channels.Informer(), sameToSubscriptions),
		channelable.SubscriptionsOf(subscriptions.Informer().GetIndexer(), channelable.Kind))
	return controller, err
}

// sameToSubscriptions reports whether two states of a Channel are equivalent for its Subscriptions.
func sameToSubscriptions(old, current *messagingv1.Channel) bool {
	return streams.Same(old, current, duckv1.ConditionReady, messagingv1.ChannelConditionBackingChannelReady) &&
		equality.Semantic.DeepEqual(old.Spec.Delivery, current.Spec.Delivery) &&
		equality.Semantic.DeepEqual(old.Status.DeliveryStatus, current.Status.DeliveryStatus)
}

// Reconcile applies a Subscription to its channel and then to its status: when the status reports Ready, the channel already sends events.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	subscription, err := r.Subscriptions.Subscriptions(key.Namespace).Get(key.Name)
	switch {
	case apierrors.IsNotFound(err):
		r.Tracker.Forget(key)
		return reconciler.Result{}, r.remove(ctx, key)
	case err != nil:
		return reconciler.Result{}, err
	case subscription.DeletionTimestamp != nil:
		r.Tracker.Forget(key)
		err := r.remove(ctx, key)
		if request.Writes {
			err = errors.Join(err, r.release(ctx, subscription))
		}
		return reconciler.Result{}, err
	}
	refs := r.Tracker.Begin(key)
	found, err := resolve(ctx, refs, subscription)
	if err != nil {
		return reconciler.Result{}, err
	}
	account, unidentified := r.Accounts.Apply(ctx, subscription, request.Writes)
	found.account = account
	var failed error
	backing, foreign, err := r.foreignChannel(subscription)
	if err != nil {
		return reconciler.Result{}, err
	}
	if _, name := channelable.Of(subscription); !r.allowed(subscription) {
		found.missing(ReasonLinksDisabled, "The channel is in another namespace, but cross-namespace-event-links of config-features is not enabled.")
		err = r.remove(ctx, key)
	} else if !foreign {
		failed, err = r.subscribe(ctx, subscription, name, &found)
	} else if err = r.removeOther(ctx, key, origin.UID(subscription.UID), ""); err == nil {
		subscription, failed, err = r.subscribeToForeign(ctx, refs, subscription, backing, request.Writes, &found)
	}
	if err != nil {
		return reconciler.Result{}, err
	}
	refs.End()
	return reconciler.Result{}, errors.Join(r.write(ctx, request.Status, subscription, &found), unidentified, failed)
}

// allowed reports whether the settings allow the link of a Subscription to its channel.
func (r *Reconciler) allowed(subscription *messagingv1.Subscription) bool {
	return !subscription.IsLinked() || r.Links != nil && r.Links()
}

// EnqueueLinked enqueues the Subscriptions of channels of other namespaces.
func (r *Reconciler) EnqueueLinked(controller *reconciler.Controller) {
	controller.Requeue(func(key types.NamespacedName) bool {
		subscription, err := r.Subscriptions.Subscriptions(key.Namespace).Get(key.Name)
		return err == nil && subscription.IsLinked()
	})
}

func keyOf(subscription types.NamespacedName) eventing.Key {
	return eventing.Key{Kind: eventing.Subscription, Namespace: subscription.Namespace, Name: subscription.Name}
}
