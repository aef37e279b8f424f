package app

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	eventinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/eventing/v1"
	eventingalphalisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/eventing/v1alpha1"
	messaginglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
)

// sharedEventing is Eventing on several replicas: the owner of a Broker or Channel writes its status, and the statuses of its
// Triggers or Subscriptions.
type sharedEventing struct {
	owners        *ownership.Table[eventing.Key]
	streams       *streams.Manager
	triggers      eventinglisters.TriggerLister
	subscriptions messaginglisters.SubscriptionLister
	runs          eventingalphalisters.EventRunLister
	// gained are called when this replica becomes the owner of streams, with a function that reports whether it became the owner of a stream.
	gained []func(which func(stream eventing.Key) bool)
}

func newSharedEventing(ctx context.Context, own *broker.Broker, o eventingOptions) *sharedEventing {
	s := &sharedEventing{
		owners:        ownership.NewTable(o.replica.Brokers(), streams.Place),
		triggers:      o.clients.informers.Eventing().V1().Triggers().Lister(),
		subscriptions: o.clients.informers.Messaging().V1().Subscriptions().Lister(),
		runs:          o.clients.informers.Eventing().V1alpha1().EventRuns().Lister(),
	}
	s.streams = streams.New(ctx, streams.Options{
		Broker: own, Owners: s.owners, Subscribed: o.subscribed, Peers: o.replica.Transport(),
		Gained: func(which func(eventing.Key) bool) {
			for _, tell := range s.gained {
				tell(which)
			}
		},
	})
	return s
}

// serve registers the handlers for peers.
func (s *sharedEventing) serve(replica *replica, handler *ingress.Handler) {
	replica.server.Handle(ingress.ForwardedElement, handler.Forwarded())
	replica.server.Handle(ingress.PipelineElement, handler.Pipelined())
	replica.server.Handle(streams.HandoverElement, s.streams.Handover())
	replica.server.Handle(streams.ConsumersElement, s.streams.HasConsumer())
	replica.server.Handle(streams.PartitionsElement, s.streams.HasPartition())
}

// lead makes controllers write about the streams that this replica owns.
func (s *sharedEventing) lead(all eventingControllers) {
	for _, c := range []struct {
		controller *reconciler.Controller
		// stream returns the stream that belongs to an object, or from which the object consumes.
		stream func(types.NamespacedName) (eventing.Key, bool)
	}{
		{all.brokers, func(name types.NamespacedName) (eventing.Key, bool) { return streamKey(eventing.Broker, name), true }},
		{all.channels, func(name types.NamespacedName) (eventing.Key, bool) { return streamKey(eventing.Channel, name), true }},
		{all.triggers, s.brokerOf},
		{all.subscriptions, s.channelOf},
		{all.runs, s.streamOfRun},
		{all.policies, func(types.NamespacedName) (eventing.Key, bool) { return eventing.Key{}, false }},
	} {
		c.controller.Lead(func(name types.NamespacedName) bool { return s.owns(c.stream(name)) })
		s.gained = append(s.gained, func(which func(eventing.Key) bool) {
			c.controller.Requeue(func(name types.NamespacedName) bool {
				return which(s.stream(c.stream(name)))
			})
		})
	}
}

// owns reports whether this replica writes about the objects of a stream, or about objects without one if known is false.
func (s *sharedEventing) owns(stream eventing.Key, known bool) bool {
	return s.owners.Owns(s.stream(stream, known))
}

// stream returns a stream, or a key of no stream if known is false. Its owner writes about all objects without a stream: the election
// is for replicas that run Serving.
func (s *sharedEventing) stream(stream eventing.Key, known bool) eventing.Key {
	if !known {
		return eventing.Key{Kind: eventing.Channel}
	}
	return stream
}

func streamKey(kind eventing.Kind, name types.NamespacedName) eventing.Key {
	return eventing.Key{Kind: kind, Namespace: name.Namespace, Name: name.Name}
}

// brokerOf returns the stream of a Trigger.
func (s *sharedEventing) brokerOf(name types.NamespacedName) (eventing.Key, bool) {
	trigger, err := s.triggers.Triggers(name.Namespace).Get(name.Name)
	if err != nil {
		return eventing.Key{}, false
	}
	return streamKey(eventing.Broker, trigger.BrokerName()), true
}

// streamOfRun returns the stream of the target of an EventRun.
func (s *sharedEventing) streamOfRun(name types.NamespacedName) (eventing.Key, bool) {
	run, err := s.runs.EventRuns(name.Namespace).Get(name.Name)
	if err != nil {
		return eventing.Key{}, false
	}
	target := types.NamespacedName{Namespace: name.Namespace, Name: run.Spec.Target.Name}
	switch eventing.Kind(run.Spec.Target.Kind) {
	case eventing.Broker:
		return streamKey(eventing.Broker, target), true
	case eventing.Subscription:
		return s.channelOf(target)
	}
	return s.brokerOf(target)
}

// channelOf returns the stream of a Subscription, unless its channel is of another kind than Channel.
func (s *sharedEventing) channelOf(name types.NamespacedName) (eventing.Key, bool) {
	subscription, err := s.subscriptions.Subscriptions(name.Namespace).Get(name.Name)
	if err != nil {
		return eventing.Key{}, false
	}
	kind, channel := channelable.Of(subscription)
	return streamKey(eventing.Channel, channel), kind == channelable.Kind
}

// ownsObject reports whether this replica records Events about an object.
func (s *sharedEventing) ownsObject(about runtime.Object) bool {
	switch object := about.(type) {
	case *eventingv1.Broker:
		return s.owns(streamKey(eventing.Broker, nameOf(object)), true)
	case *messagingv1.Channel:
		return s.owns(streamKey(eventing.Channel, nameOf(object)), true)
	case *eventingv1.Trigger:
		return s.owns(s.brokerOf(nameOf(object)))
	case *messagingv1.Subscription:
		return s.owns(s.channelOf(nameOf(object)))
	}
	return s.owns(eventing.Key{}, false)
}

func nameOf(object metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// subscribed lists the Triggers and Subscriptions whose status says that they are subscribed.
func (o *eventingOptions) subscribed(ctx context.Context) ([]eventing.Consumer, error) {
	var all []eventing.Consumer
	add := func(object metav1.Object, conditions duckv1.Conditions, t duckv1.ConditionType, key, stream eventing.Key) {
		if c := conditions.Get(t); c != nil && c.Status == corev1.ConditionTrue && object.GetDeletionTimestamp() == nil {
			all = append(all, eventing.Consumer{Key: key, UID: origin.UID(object.GetUID()), Stream: stream})
		}
	}
	triggers, err := o.clients.versioned.EventingV1().Triggers("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Triggers: %w", err)
	}
	for i := range triggers.Items {
		t := &triggers.Items[i]
		add(t, t.Status.Conditions, eventingv1.TriggerConditionSubscriptionReady, streamKey(eventing.Trigger, nameOf(t)), streamKey(eventing.Broker, t.BrokerName()))
	}
	subscriptions, err := o.clients.versioned.MessagingV1().Subscriptions("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Subscriptions: %w", err)
	}
	for i := range subscriptions.Items {
		s := &subscriptions.Items[i]
		if kind, channel := channelable.Of(s); kind == channelable.Kind {
			add(s, s.Status.Conditions, messagingv1.SubscriptionConditionAddedToChannel, streamKey(eventing.Subscription, nameOf(s)), streamKey(eventing.Channel, channel))
		}
	}
	return all, nil
}

// existing returns a function that lists the UIDs of all streams and consumers in the API. Other replicas may have created streams
// that are missing in this replica's informers.
func (o *eventingOptions) existing() func(context.Context) (sets.Set[types.UID], error) {
	if o.replica == nil {
		return nil
	}
	eventing, messaging := o.clients.versioned.EventingV1(), o.clients.versioned.MessagingV1()
	return func(ctx context.Context) (sets.Set[types.UID], error) {
		found := sets.New[types.UID]()
		for kind, list := range map[string]func() (runtime.Object, error){
			"Brokers":       func() (runtime.Object, error) { return eventing.Brokers("").List(ctx, metav1.ListOptions{}) },
			"Triggers":      func() (runtime.Object, error) { return eventing.Triggers("").List(ctx, metav1.ListOptions{}) },
			"Channels":      func() (runtime.Object, error) { return messaging.Channels("").List(ctx, metav1.ListOptions{}) },
			"Subscriptions": func() (runtime.Object, error) { return messaging.Subscriptions("").List(ctx, metav1.ListOptions{}) },
		} {
			objects, err := list()
			if err == nil {
				err = meta.EachListItem(objects, func(object runtime.Object) error {
					found.Insert(origin.UID(object.(metav1.Object).GetUID()))
					return nil
				})
			}
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", kind, err)
			}
		}
		return found, nil
	}
}
