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
	// Host reads channels of other kinds; nil without a host cluster.
	Host     *destination.Host
	Tracker  *destination.Tracker
	Recorder record.EventRecorder
	Clock    clock.PassiveClock

	// mu guards consumers, which the data plane has.
	mu        sync.Mutex
	consumers map[types.NamespacedName]eventing.Consumer
}

// Controller returns the controller that runs r, and sets Subscriptions, Channels and Tracker. Call its Enqueue when the health of a
// consumer changes. Run it once the controller of Channels is Primed: Subscriptions to streams that are not set yet would become not ready.
func (r *Reconciler) Controller(informers messaginginformers.Interface, resolver *destination.Resolver) (*reconciler.Controller, error) {
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
	for _, t := range []duckv1.ConditionType{duckv1.ConditionReady, messagingv1.ChannelConditionBackingChannelReady} {
		if !equality.Semantic.DeepEqual(old.Status.Conditions.Get(t), current.Status.Conditions.Get(t)) {
			return false
		}
	}
	return old.UID == current.UID &&
		(old.DeletionTimestamp == nil) == (current.DeletionTimestamp == nil) &&
		equality.Semantic.DeepEqual(old.Spec.Delivery, current.Spec.Delivery) &&
		equality.Semantic.DeepEqual(old.Status.DeliveryStatus, current.Status.DeliveryStatus)
}

// Reconcile applies a Subscription to its channel and then to its status: when that says Ready, the channel sends events already.
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
	var failed error
	backing, foreign, err := r.foreignChannel(subscription)
	if err != nil {
		return reconciler.Result{}, err
	}
	if _, name := channelable.Of(subscription); !foreign {
		failed, err = r.subscribe(ctx, subscription, name, &found)
	} else if err = r.removeOther(ctx, key, origin.UID(subscription.UID), ""); err == nil {
		subscription, failed, err = r.subscribeToForeign(ctx, refs, subscription, backing, request.Writes, &found)
	}
	if err != nil {
		return reconciler.Result{}, err
	}
	refs.End()
	return reconciler.Result{}, errors.Join(r.write(ctx, request.Status, subscription, &found), failed)
}

func keyOf(subscription types.NamespacedName) eventing.Key {
	return eventing.Key{Kind: eventing.Subscription, Namespace: subscription.Namespace, Name: subscription.Name}
}
