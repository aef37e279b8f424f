package channel

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

func condition(condition duckv1.Condition) func(*messagingv1.Subscription) {
	return func(s *messagingv1.Subscription) {
		s.Status.Conditions.Set(condition, metav1.NewTime(controllertest.Now))
	}
}

// A Channel lists its Subscriptions by their UIDs, with their resolved addresses and with the Channel's delivery
// options if they have none (eventing Channel-1 and -2, eventing duckv1.SubscriberSpec-1), and reports whether events
// reach them (duckv1.SubscriberStatus). At rest, nothing is written.
func TestSubscribers(t *testing.T) {
	unresolved := condition(reconciler.False(messagingv1.SubscriptionConditionReferencesResolved, "SubscriberNotFound", ""))
	going := metav1.NewTime(controllertest.Now)
	old := duckv1.SubscriberSpec{UID: "e", Name: ptr.To("e"), Generation: 3, SubscriberURI: "http://earlier/"}
	f := newFixture(t,
		channelOf(messagingv1.ChannelKindJetStream, deadLetters(duckv1.Destination{URI: "http://dead/"}), func(c *messagingv1.Channel) {
			c.Spec.Delivery.Retry = ptr.To[int32](5)
			c.Spec.Subscribers = []duckv1.SubscriberSpec{{UID: "gone", SubscriberURI: "http://gone/"}, old}
		}),
		subscription("c", condition(reconciler.False(messagingv1.SubscriptionConditionAddedToChannel, "NotAdded", "Broken.")), func(s *messagingv1.Subscription) {
			s.Status.PhysicalSubscription.DeadLetterSinkURI = "http://dead/"
		}),
		subscription("b", func(s *messagingv1.Subscription) {
			s.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](1), DeadLetterSink: &duckv1.Destination{Ref: &duckv1.KReference{Name: "x"}}}
			s.Status.PhysicalSubscription = messagingv1.PhysicalSubscriptionStatus{
				SubscriberURI: "http://b/", SubscriberAudience: ptr.To("b"), ReplyURI: "http://reply/", ReplyAudience: ptr.To("reply"),
				DeliveryStatus: duckv1.DeliveryStatus{DeadLetterSinkURI: "http://own/", DeadLetterSinkAudience: ptr.To("own")},
			}
		}),
		subscription("a", func(s *messagingv1.Subscription) {
			s.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](0)}
			s.Status.Conditions = s.Status.Conditions[1:]
		}),
		// The next Subscriptions are invalid and must not be listed.
		subscription("d", unresolved),
		subscription("e", unresolved),
		subscription("f", func(s *messagingv1.Subscription) { s.Generation = 2 }),
		subscription("g", func(s *messagingv1.Subscription) { s.DeletionTimestamp, s.Finalizers = &going, []string{"x"} }),
		subscription("h"),
		subscription("i", func(s *messagingv1.Subscription) { s.Spec.Channel.Name = "other" }),
		subscription("j", func(s *messagingv1.Subscription) { s.Spec.Channel.Kind = "KafkaChannel" }),
		subscription("k", func(s *messagingv1.Subscription) { s.Namespace = "other" }),
		subscription("l", func(s *messagingv1.Subscription) {
			s.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](0)}
			s.Status.PhysicalSubscription.SubscriberURI = "nonsense"
		}),
	)
	if diff := cmp.Diff([]string{"update channels", "update channels/status"}, f.reconcile()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	want := []duckv1.SubscriberSpec{
		{UID: "a", Name: ptr.To("a"), Generation: 1, SubscriberURI: "http://a/", Delivery: &duckv1.DeliverySpec{Retry: ptr.To[int32](0)}},
		{UID: "b", Name: ptr.To("b"), Generation: 1, SubscriberURI: "http://b/", SubscriberAudience: ptr.To("b"), ReplyURI: "http://reply/", ReplyAudience: ptr.To("reply"),
			Delivery: &duckv1.DeliverySpec{Retry: ptr.To[int32](1), DeadLetterSink: &duckv1.Destination{URI: "http://own/", Audience: ptr.To("own")}}},
		{UID: "c", Name: ptr.To("c"), Generation: 1, SubscriberURI: "http://c/",
			Delivery: &duckv1.DeliverySpec{Retry: ptr.To[int32](5), DeadLetterSink: &duckv1.Destination{URI: "http://dead/"}}},
		old,
	}
	if diff := cmp.Diff(want, f.channel().Spec.Subscribers); diff != "" {
		t.Errorf("subscribers (-want +got):\n%s", diff)
	}
	states := []duckv1.SubscriberStatus{
		{UID: "a", Generation: 1, ObservedGeneration: 1, Ready: corev1.ConditionUnknown},
		{UID: "b", Generation: 1, ObservedGeneration: 1, Ready: corev1.ConditionTrue},
		{UID: "c", Generation: 1, ObservedGeneration: 1, Ready: corev1.ConditionFalse, Message: "Broken."},
		{UID: "e", Generation: 3, ObservedGeneration: 3, Ready: corev1.ConditionTrue},
	}
	if diff := cmp.Diff(states, f.channel().Status.Subscribers); diff != "" {
		t.Errorf("status of subscribers (-want +got):\n%s", diff)
	}
	if writes := f.reconcile(); len(writes) > 0 {
		t.Errorf("writes at rest: %v", writes)
	}
}

// A thousand Subscriptions that are created at once are listed in a few writes, and their deletion is observed (eventing Channel v1 spec).
func TestWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := controllertest.New(t, channelOf(messagingv1.ChannelKindJetStream))
		resolver := destination.New(t.Context(), destination.Options{Informers: w.Factory, ClusterDomain: "cluster.local"})
		streams := &fakeStreams{streams: map[eventing.Key]eventing.Stream{}}
		r := &Reconciler{Client: w.Client.MessagingV1(), Recorder: w.Recorder, Clock: w.Clock, Streams: streams, Addresses: addresses}
		controller, err := r.Controller(w.Factory.Messaging().V1(), w.EventPolicies(), resolver)
		if err != nil {
			t.Fatal(err)
		}
		w.Run(controller, func() {
			w.Client.ClearActions()
			const many = 1000
			subscriptions := w.Client.MessagingV1().Subscriptions(key.Namespace)
			for i := range many {
				if _, err := subscriptions.Create(t.Context(), subscription(fmt.Sprintf("s%d", i)), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				// Watches of the fake server buffer a hundred changes.
				synctest.Wait()
			}
			listed := func() int {
				<-time.After(time.Second)
				synctest.Wait()
				channel, err := w.Client.MessagingV1().Channels(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if len(channel.Spec.Subscribers) != len(channel.Status.Subscribers) {
					t.Errorf("%d subscribers, but the status of %d", len(channel.Spec.Subscribers), len(channel.Status.Subscribers))
				}
				return len(channel.Spec.Subscribers)
			}
			if got := listed(); got != many {
				t.Errorf("%d subscribers, want %d", got, many)
			}
			writes := slices.DeleteFunc(w.Writes(), func(write string) bool { return write == "create subscriptions" })
			if len(writes) > 4 {
				t.Errorf("%d writes of the Channel", len(writes))
			}
			if err := subscriptions.Delete(t.Context(), "s1", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := listed(); got != many-1 {
				t.Errorf("%d subscribers after a deletion, want %d", got, many-1)
			}
		})
	})
}
