package subscription

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/deliveryhealth"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// A Subscription is ready once the broker has it, in one write, and none at rest (eventing Subscription Lifecycle-4 and
// -12, eventing Subscription-2 and -3). All its destinations are resolved and reported (eventing
// PhysicalSubscriptionStatus).
func TestReady(t *testing.T) {
	certs := "certs"
	f := newFixture(t, nil, channelOf(), brokerAt("b", "http://b/"), subscription(func(s *messagingv1.Subscription) {
		s.Annotations = map[string]string{duckv1.DeliveryOrderAnnotationKey: duckv1.DeliveryOrdered}
		s.Spec.Subscriber.CACerts, s.Spec.Subscriber.Audience = &certs, ptr.To("subscriber")
		s.Spec.Reply = toBroker("b")
		s.Spec.Reply.URI, s.Spec.Reply.CACerts, s.Spec.Reply.Audience = "in", &certs, ptr.To("reply")
		s.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](2), DeadLetterSink: &duckv1.Destination{URI: "http://dead/", CACerts: &certs, Audience: ptr.To("dead")}}
	}))
	if diff := cmp.Diff([]string{"update subscriptions/status"}, f.reconcile()); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True", resolved: "True", added: "True", channelReady: "True",
		deliveryhealth.Condition: "missing"})
	addresses := messagingv1.PhysicalSubscriptionStatus{
		SubscriberURI: "http://billing/", SubscriberCACerts: &certs, SubscriberAudience: ptr.To("subscriber"),
		ReplyURI: "http://b/in", ReplyCACerts: &certs, ReplyAudience: ptr.To("reply"),
		DeliveryStatus: duckv1.DeliveryStatus{DeadLetterSinkURI: "http://dead/", DeadLetterSinkCACerts: &certs, DeadLetterSinkAudience: ptr.To("dead")},
	}
	if diff := cmp.Diff(addresses, f.subscription().Status.PhysicalSubscription); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	want := eventing.Consumer{
		Key: keyOf(key), UID: "uid", StreamUID: "channel-uid",
		Stream:     eventing.Key{Kind: eventing.Channel, Namespace: "default", Name: "orders"},
		Subscriber: eventing.Endpoint{URL: "http://billing/", CACerts: certs},
		Reply:      eventing.Endpoint{URL: "http://b/in", CACerts: certs},
		DeadLetter: eventing.Endpoint{URL: "http://dead/", CACerts: certs},
		Delivery:   streams.DeliveryOf(&duckv1.DeliverySpec{Retry: ptr.To[int32](2)}),
		Ordered:    true,
	}
	if got, _ := f.consumer(); !cmp.Equal(want, got) {
		t.Errorf("consumer (-want +got):\n%s", cmp.Diff(want, got))
	}
	if diff := cmp.Diff([]string{"Normal Ready Became ready"}, f.Events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if writes := f.reconcile(); len(writes) > 0 || len(f.consumers.calls) != 1 {
		t.Errorf("at rest: writes %v, calls %v", writes, f.consumers.calls)
	}
}

// With only a reply, events are sent there alone (eventing Subscription Lifecycle).
func TestReplyAlone(t *testing.T) {
	f := newFixture(t, nil, channelOf(), subscription(func(s *messagingv1.Subscription) {
		s.Spec.Subscriber, s.Spec.Reply = nil, &duckv1.Destination{URI: "http://reply/"}
	}))
	f.reconcile()
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True"})
	got, _ := f.consumer()
	if got.Subscriber.URL != "" || got.Reply.URL != "http://reply/" {
		t.Errorf("consumer: %+v", got)
	}
}

// A destination that cannot be resolved makes the Subscription not ready, with a reason and an empty address (eventing
// Subscription Lifecycle-5 to -7, eventing Destination Resolution-4 and -5). The Channel keeps its events meanwhile.
func TestUnresolved(t *testing.T) {
	const missing = `eventing.knative.dev/v1 Broker "default/x" does not exist`
	all := messagingv1.PhysicalSubscriptionStatus{SubscriberURI: "http://billing/", ReplyURI: "http://reply/",
		DeliveryStatus: duckv1.DeliveryStatus{DeadLetterSinkURI: "http://dead/"}}
	for name, test := range map[string]struct {
		change func(*messagingv1.SubscriptionSpec)
		// without removes the address that is missing.
		without func(*messagingv1.PhysicalSubscriptionStatus)
		want    string
		// unresolved are the subscriber, reply and dead letter sink without an address.
		unresolved [3]bool
	}{
		"subscriber": {
			func(s *messagingv1.SubscriptionSpec) { s.Subscriber = toBroker("x") },
			func(a *messagingv1.PhysicalSubscriptionStatus) { a.SubscriberURI = "" },
			"False SubscriberNotFound spec.subscriber: " + missing, [3]bool{true, false, false},
		},
		"reply": {
			func(s *messagingv1.SubscriptionSpec) { s.Reply = toBroker("x") },
			func(a *messagingv1.PhysicalSubscriptionStatus) { a.ReplyURI = "" },
			"False ReplyNotFound spec.reply: " + missing, [3]bool{false, true, false},
		},
		"dead letter sink": {
			func(s *messagingv1.SubscriptionSpec) { s.Delivery.DeadLetterSink = toBroker("x") },
			func(a *messagingv1.PhysicalSubscriptionStatus) { a.DeadLetterSinkURI = "" },
			"False DeadLetterSinkNotFound spec.delivery.deadLetterSink: " + missing, [3]bool{false, false, true},
		},
		"no address": {
			func(s *messagingv1.SubscriptionSpec) { s.Reply = toBroker("mute") },
			func(a *messagingv1.PhysicalSubscriptionStatus) { a.ReplyURI = "" },
			`False ReplyNotAddressable spec.reply: eventing.knative.dev/v1 Broker "default/mute" has no address in status.address.url yet`, [3]bool{false, true, false},
		},
		"all": {
			func(s *messagingv1.SubscriptionSpec) {
				s.Subscriber, s.Reply, s.Delivery.DeadLetterSink = toBroker("x"), toBroker("x"), toBroker("x")
			},
			func(a *messagingv1.PhysicalSubscriptionStatus) { *a = messagingv1.PhysicalSubscriptionStatus{} },
			"False SubscriberNotFound spec.subscriber: " + missing + "; spec.reply: " + missing + "; spec.delivery.deadLetterSink: " + missing,
			[3]bool{true, true, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil, channelOf(), brokerAt("mute", ""), subscription(func(s *messagingv1.Subscription) {
				s.Spec.Reply = &duckv1.Destination{URI: "http://reply/"}
				s.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{URI: "http://dead/"}}
				test.change(&s.Spec)
			}))
			f.reconcile()
			f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: test.want, resolved: test.want, channelReady: "True", added: "True"})
			want := all
			test.without(&want)
			if diff := cmp.Diff(want, f.subscription().Status.PhysicalSubscription); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			f.expectUnresolved(test.unresolved)
			f.put(brokerAt("x", "http://x/"), brokerAt("mute", "http://mute/"))
			f.reconcile()
			f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True"})
			f.expectUnresolved([3]bool{})
		})
	}
}

// expectUnresolved fails unless a consumer exists whose subscriber, reply and dead letter sink are unresolved as given.
func (f *fixture) expectUnresolved(want [3]bool) {
	f.t.Helper()
	got, ok := f.consumer()
	if !ok {
		f.t.Fatal("the consumer does not exist")
	}
	if have := [3]bool{got.Subscriber.Unresolved, got.Reply.Unresolved, got.DeadLetter.Unresolved}; have != want {
		f.t.Errorf("unresolved destinations are %v, want %v", have, want)
	}
	for i, to := range []eventing.Endpoint{got.Subscriber, got.Reply, got.DeadLetter} {
		if want[i] && to.URL != "" {
			f.t.Errorf("destination %d is unresolved at %q", i, to.URL)
		}
	}
}

// While addresses are lost, the Channel keeps the events, also over a restart; the status reports that the addresses are
// lost (eventing Subscription Lifecycle).
func TestLostAddresses(t *testing.T) {
	f := newFixture(t, nil, channelOf(), brokerAt("a", "http://a/"), brokerAt("b", "http://b/"), brokerAt("c", "http://c/"),
		subscription(func(s *messagingv1.Subscription) {
			s.Spec.Subscriber, s.Spec.Reply = toBroker("a"), toBroker("b")
			s.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: toBroker("c")}
		}))
	f.reconcile()
	for _, name := range []string{"a", "b", "c"} {
		f.delete("brokers", name)
	}
	lost := func() {
		t.Helper()
		f.reconcile()
		if diff := cmp.Diff(messagingv1.PhysicalSubscriptionStatus{}, f.subscription().Status.PhysicalSubscription); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		if got := f.subscription().Status.Conditions.Get(duckv1.ConditionReady); got.Reason != "SubscriberNotFound" || got.Status != "False" {
			t.Errorf("Ready is %v", got)
		}
		f.expect(map[duckv1.ConditionType]string{added: "True"})
		f.expectUnresolved([3]bool{true, true, true})
	}
	lost()
	f.restart(nil)
	lost()
	// Replies need an address before events are sent, dead letters do not.
	f.put(brokerAt("a", "http://moved/"), brokerAt("b", "http://b/"))
	f.reconcile()
	f.expectUnresolved([3]bool{false, false, true})
	if got, _ := f.consumer(); got.Subscriber.URL != "http://moved/" || got.Reply.URL != "http://b/" {
		t.Errorf("consumer: %+v", got)
	}
}

// A Subscription is not ready without a ready channel, and recovers with the channel (eventing Subscription Lifecycle-2 and -3).
func TestChannel(t *testing.T) {
	const ready = duckv1.ConditionReady
	waiting := reconciler.Unknown(ready, "", "")
	for name, test := range map[string]struct {
		channel  *messagingv1.Channel
		ready    string
		added    string
		consumer bool
	}{
		"missing": {nil, `False ChannelDoesNotExist Channel "default/orders" does not exist`, `False ChannelDoesNotExist Channel "default/orders" does not exist`, false},
		"not seen yet": {channelOf(func(c *messagingv1.Channel) { c.Status.Conditions = nil }),
			`False ChannelNotReady Channel "default/orders" is not ready`, "True", true},
		"waiting": {channelOf(channelSays(waiting)), `False ChannelNotReady Channel "default/orders" is not ready`, "True", true},
		"failed": {channelOf(channelSays(reconciler.False(ready, "DeadLetterSinkNotFound", "It is gone."))),
			`False ChannelNotReady Channel "default/orders" is not ready: DeadLetterSinkNotFound: It is gone.`, "True", true},
		"of another controller": {channelOf(func(c *messagingv1.Channel) { c.Spec.ChannelTemplate.Kind = "KafkaChannel" }), "True",
			`False ChannelNotServed Channel "default/orders" asks for a kind of channel that another controller serves: messaging.knative.dev/v1 KafkaChannel`, false},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{subscription()}
			if test.channel != nil {
				objects = append(objects, test.channel)
			}
			f := newFixture(t, nil, objects...)
			f.reconcile()
			f.expect(map[duckv1.ConditionType]string{resolved: "True", added: test.added, channelReady: test.ready})
			if got := f.subscription().Status.Conditions.Get(ready).Status; got != "False" {
				t.Errorf("Ready is %s", got)
			}
			if _, ok := f.consumer(); ok != test.consumer {
				t.Errorf("consumer: %t, want %t", ok, test.consumer)
			}
			f.put(channelOf())
			f.reconcile()
			f.expect(map[duckv1.ConditionType]string{ready: "True"})
			if _, ok := f.consumer(); !ok {
				t.Error("no consumer once the Channel is ready")
			}
		})
	}
}

// Without its own delivery options, a Subscription uses all options of its Channel, with its dead letter sink (eventing
// Channel-2).
func TestDelivery(t *testing.T) {
	defaults := func(c *messagingv1.Channel) {
		c.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](7), Timeout: ptr.To("PT3S"), DeadLetterSink: toBroker("dead")}
	}
	known := func(c *messagingv1.Channel) { c.Status.DeliveryStatus.DeadLetterSinkURI = "http://dead/" }
	f := newFixture(t, nil, subscription(), channelOf(defaults))
	f.reconcile()
	f.expectUnresolved([3]bool{false, false, true})
	f.put(channelOf(defaults, known))
	f.reconcile()
	got, _ := f.consumer()
	if got.Delivery.Retry != 7 || got.Delivery.Timeout != 3*time.Second || got.DeadLetter.URL != "http://dead/" {
		t.Errorf("consumer: %+v", got)
	}
	if got := f.subscription().Status.PhysicalSubscription.DeadLetterSinkURI; got != "http://dead/" {
		t.Errorf("dead letter sink is %q", got)
	}
	f.update(func(s *messagingv1.Subscription) { s.Spec.Delivery = &duckv1.DeliverySpec{Retry: ptr.To[int32](1)} })
	f.reconcile()
	got, _ = f.consumer()
	if got.Delivery.Retry != 1 || got.Delivery.Timeout != 0 || got.DeadLetter.URL != "" {
		t.Errorf("consumer: %+v", got)
	}
	if got := f.subscription().Status.PhysicalSubscription.DeadLetterSinkURI; got != "" {
		t.Errorf("dead letter sink is %q", got)
	}
}

// A Subscription waits for a Channel that does not keep events yet, without retries.
func TestChannelNotSet(t *testing.T) {
	f := newFixture(t, nil, subscription(), channelOf(func(c *messagingv1.Channel) { c.Status.Conditions = nil }))
	f.consumers.err = errors.New("no such stream")
	f.reconcile()
	f.expect(map[duckv1.ConditionType]string{added: `Unknown ChannelNotReady Channel "default/orders" does not keep events yet`})
}

// Ready waits until the broker has the Subscription (eventing Subscription Lifecycle-12).
func TestBrokerFails(t *testing.T) {
	f := newFixture(t, nil, subscription(), channelOf())
	f.consumers.err = errors.New("log is full")
	if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, f.consumers.err) {
		t.Errorf("got error %v, want %v", err, f.consumers.err)
	}
	const want = `False NotAdded Channel "default/orders" does not send events to the Subscription: log is full`
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: want, added: want})
	f.SyncEventing()
	f.consumers.err = nil
	f.reconcile()
	f.expect(map[duckv1.ConditionType]string{duckv1.ConditionReady: "True"})
}

// A deleted Subscription receives no more events, and a later one of its name does not inherit them (eventing Subscription
// Lifecycle). The same applies to its Channel.
func TestDeletion(t *testing.T) {
	for name, test := range map[string]struct {
		change func(f *fixture)
		calls  []string
		want   *eventing.Consumer
	}{
		"gone": {func(f *fixture) { f.delete("subscriptions", key.Name) }, []string{"set uid", "remove"}, nil},
		"going": {func(f *fixture) {
			f.update(func(s *messagingv1.Subscription) {
				s.DeletionTimestamp, s.Finalizers = ptr.To(metav1.NewTime(controllertest.Now)), []string{"x"}
			})
		}, []string{"set uid", "remove"}, nil},
		"recreated": {func(f *fixture) { f.update(func(s *messagingv1.Subscription) { s.UID = "new" }) },
			[]string{"set uid", "remove", "set new"}, &eventing.Consumer{UID: "new", StreamUID: "channel-uid"}},
		"recreated without address": {func(f *fixture) {
			f.update(func(s *messagingv1.Subscription) { s.UID, s.Spec.Subscriber = "new", toBroker("x") })
		}, []string{"set uid", "remove", "set new"}, &eventing.Consumer{UID: "new", StreamUID: "channel-uid"}},
		"recreated for a foreign channel": {func(f *fixture) {
			f.update(func(s *messagingv1.Subscription) { s.UID, s.Spec.Channel.Kind = "new", "KafkaChannel" })
		}, []string{"set uid", "remove"}, nil},
		"Channel gone": {func(f *fixture) { f.delete("channels", "orders") }, []string{"set uid", "remove"}, nil},
		"Channel recreated": {func(f *fixture) {
			f.put(channelOf(func(c *messagingv1.Channel) { c.UID = "new" }))
		}, []string{"set uid", "remove", "set uid"}, &eventing.Consumer{UID: "uid", StreamUID: "new"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil, subscription(), channelOf())
			f.reconcile()
			test.change(f)
			f.reconcile()
			if diff := cmp.Diff(test.calls, f.consumers.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			got, ok := f.consumer()
			if ok != (test.want != nil) {
				t.Errorf("consumer: %t", ok)
			} else if ok && (got.UID != test.want.UID || got.StreamUID != test.want.StreamUID) {
				t.Errorf("consumer: %+v", got)
			}
		})
	}
}

// Failing deliveries are reported once and do not affect the readiness of the Subscription (eventing Error Signalling).
func TestDeliveryHealth(t *testing.T) {
	f := newFixture(t, nil, subscription(), channelOf())
	f.reconcile()
	f.Events()
	f.consumers.health = eventing.Health{Failing: true, Since: controllertest.Now, LastError: "POST http://billing/: 503 Service Unavailable"}
	for range 2 {
		f.reconcile()
	}
	const message = "POST http://billing/: 503 Service Unavailable, since 2026-03-01T12:00:00Z"
	f.expect(map[duckv1.ConditionType]string{deliveryhealth.Condition: "False DeliveryFailing " + message, duckv1.ConditionReady: "True"})
	if got := f.subscription().Status.Conditions.Get(deliveryhealth.Condition).Severity; got != duckv1.ConditionSeverityWarning {
		t.Errorf("severity is %q", got)
	}
	if diff := cmp.Diff([]string{"Warning DeliveryFailing " + message}, f.Events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	f.consumers.health = eventing.Health{}
	for range 2 {
		f.reconcile()
	}
	f.expect(map[duckv1.ConditionType]string{deliveryhealth.Condition: "True", duckv1.ConditionReady: "True"})
	if diff := cmp.Diff([]string{"Normal DeliveryRecovered Deliveries succeed again"}, f.Events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// The controller watches the dependencies of its Subscriptions, and ignores other changes of their Channel.
func TestWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := controllertest.New(t, subscription(func(s *messagingv1.Subscription) { s.Spec.Subscriber = toBroker("b") }))
		resolver := destination.New(t.Context(), destination.Options{Informers: w.Factory, ClusterDomain: "cluster.local"})
		consumers := &fakeConsumers{consumers: map[eventing.Key]eventing.Consumer{}}
		r := &Reconciler{Client: w.Client.MessagingV1(), Recorder: w.Recorder, Clock: w.Clock, Consumers: consumers}
		w.Accounts = controllertest.NewAccounts(false)
		controller, err := r.Controller(w.Factory.Messaging().V1(), w.Accounts.Source, resolver)
		if err != nil {
			t.Fatal(err)
		}
		w.Run(controller, func() {
			ready := func() string {
				synctest.Wait()
				s, err := w.Client.MessagingV1().Subscriptions(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return string(s.Status.Conditions.Get(duckv1.ConditionReady).Status)
			}
			channels := w.Client.MessagingV1().Channels(key.Namespace)
			if _, err := channels.Create(t.Context(), channelOf(), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := ready(); got != "False" {
				t.Errorf("Ready is %s before the subscriber exists", got)
			}
			if err := w.Client.Tracker().Add(brokerAt("b", "http://b/")); err != nil {
				t.Fatal(err)
			}
			if got := ready(); got != "True" {
				t.Errorf("Ready is %s once the subscriber exists", got)
			}
			failed := channelOf(channelSays(reconciler.False(duckv1.ConditionReady, "Broken", "")))
			if _, err := channels.Update(t.Context(), failed, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := ready(); got != "False" {
				t.Errorf("Ready is %s once the Channel failed", got)
			}
			if err := channels.Delete(t.Context(), "orders", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := ready(); got != "False" || len(consumers.consumers) > 0 {
				t.Errorf("Ready is %s, consumers are %v once the Channel is deleted", got, consumers.consumers)
			}
		})
	})
}

// Changes of a Channel that do not affect its Subscriptions do not enqueue them.
func TestSameToSubscriptions(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*messagingv1.Channel)
		same   bool
	}{
		"subscribers": {func(c *messagingv1.Channel) {
			c.Generation = 2
			c.Spec.Subscribers = []duckv1.SubscriberSpec{{UID: "uid"}}
			c.Status.Subscribers = []duckv1.SubscriberStatus{{UID: "uid"}}
		}, true},
		"UID": {func(c *messagingv1.Channel) { c.UID = "new" }, false},
		"dead letter store": {func(c *messagingv1.Channel) {
			c.Annotations = map[string]string{duckv1.DeadLetterStoreAnnotationKey: duckv1.DeadLetterStoreDisabled}
		}, false},
		"deletion":         {func(c *messagingv1.Channel) { c.DeletionTimestamp = ptr.To(metav1.NewTime(controllertest.Now)) }, false},
		"delivery":         {func(c *messagingv1.Channel) { c.Spec.Delivery = &duckv1.DeliverySpec{} }, false},
		"dead letter sink": {func(c *messagingv1.Channel) { c.Status.DeadLetterSinkURI = "http://dead/" }, false},
		"ready":            {channelSays(reconciler.False(duckv1.ConditionReady, "", "")), false},
		"backing channel":  {channelSays(reconciler.False(messagingv1.ChannelConditionBackingChannelReady, "", "")), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := sameToSubscriptions(channelOf(), channelOf(test.change)); got != test.same {
				t.Errorf("got %t, want %t", got, test.same)
			}
		})
	}
}

// TestGrantWithdrawn checks that sending to another namespace stops once it removes the grant, for references of the Subscription and of its Channel.
func TestGrantWithdrawn(t *testing.T) {
	sink := channelOf(func(c *messagingv1.Channel) {
		c.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{URI: "http://theirs/"}}
		c.Status.DeliveryStatus.DeadLetterSinkURI = "http://theirs/"
	})
	f := newFixture(t, nil, sink, subscription())
	f.reconcile()
	if _, ok := f.consumer(); !ok {
		t.Fatal("no consumer")
	}
	withdrawn := sink.DeepCopy()
	withdrawn.Status.DeliveryStatus = duckv1.DeliveryStatus{}
	channelSays(reconciler.False(destination.ConditionDeadLetterSinkResolved, "DeadLetterSinkNotGranted", ""))(withdrawn)
	f.put(withdrawn)
	f.reconcile()
	f.expect(map[duckv1.ConditionType]string{added: "True"})
	f.expectUnresolved([3]bool{false, false, true})
}
