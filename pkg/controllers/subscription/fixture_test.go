package subscription

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	resolved     = messagingv1.SubscriptionConditionReferencesResolved
	added        = messagingv1.SubscriptionConditionAddedToChannel
	channelReady = messagingv1.SubscriptionConditionChannelReady
)

var key = types.NamespacedName{Namespace: "default", Name: "billing"}

// fakeConsumers records the consumers that were set.
type fakeConsumers struct {
	consumers map[eventing.Key]eventing.Consumer
	health    eventing.Health
	err       error
	calls     []string
}

func (f *fakeConsumers) SetConsumer(_ context.Context, consumer eventing.Consumer) error {
	f.calls = append(f.calls, "set "+string(consumer.UID))
	if f.err == nil {
		f.consumers[consumer.Key] = consumer
	}
	return f.err
}

func (f *fakeConsumers) RemoveConsumer(_ context.Context, key eventing.Key) error {
	f.calls = append(f.calls, "remove")
	if f.err == nil {
		delete(f.consumers, key)
	}
	return f.err
}

func (f *fakeConsumers) Health(eventing.Key) eventing.Health { return f.health }

// fixture is a Reconciler with fake dependencies.
type fixture struct {
	*Reconciler
	*controllertest.Fixture
	t         *testing.T
	consumers *fakeConsumers
	resolver  *destination.Resolver
	accounts  *controllertest.Accounts
}

func newFixture(t *testing.T, host *destination.Host, objects ...runtime.Object) *fixture {
	t.Helper()
	w := controllertest.New(t, objects...)
	f := &fixture{t: t, Fixture: w, resolver: destination.New(t.Context(), destination.Options{Informers: w.Factory, ClusterDomain: "cluster.local", Host: host, AllowCrossNamespace: true})}
	f.accounts = controllertest.NewAccounts(false)
	f.restart(host)
	w.SyncEventing()
	return f
}

// restart replaces the Reconciler and the broker by new ones for the same objects.
func (f *fixture) restart(host *destination.Host) {
	f.t.Helper()
	tracker, err := f.resolver.Track(controllertest.Silent{})
	if err != nil {
		f.t.Fatal(err)
	}
	messaging := f.Factory.Messaging().V1()
	f.consumers = &fakeConsumers{consumers: map[eventing.Key]eventing.Consumer{}}
	f.Reconciler = &Reconciler{
		Client:        f.Fixture.Client.MessagingV1(),
		Subscriptions: messaging.Subscriptions().Lister(),
		Channels:      messaging.Channels().Lister(),
		Consumers:     f.consumers,
		Accounts:      f.accounts.Of(f.t, messagingv1.SchemeGroupVersion.WithKind("Subscription")),
		Host:          host,
		Tracker:       tracker,
		Recorder:      f.Fixture.Recorder,
		Clock:         f.Fixture.Clock,
	}
}

// reconcile returns the writes, after the informers have received them.
func (f *fixture) reconcile() []string {
	f.t.Helper()
	if err := controllertest.Reconcile(f.t.Context(), f, key); err != nil {
		f.t.Fatal(err)
	}
	writes := f.Writes()
	f.SyncEventing()
	return writes
}

func (f *fixture) subscription() *messagingv1.Subscription {
	f.t.Helper()
	s, err := f.Fixture.Client.MessagingV1().Subscriptions(key.Namespace).Get(f.t.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// update changes the Subscription as a user does.
func (f *fixture) update(change func(*messagingv1.Subscription)) {
	f.t.Helper()
	s := f.subscription()
	s.Generation++
	change(s)
	if _, err := f.Fixture.Client.MessagingV1().Subscriptions(key.Namespace).Update(f.t.Context(), s, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.SyncEventing()
}

// put creates or replaces Channels and Brokers.
func (f *fixture) put(objects ...runtime.Object) {
	f.t.Helper()
	for _, object := range objects {
		gvr := messagingv1.SchemeGroupVersion.WithResource("channels")
		if _, ok := object.(*eventingv1.Broker); ok {
			gvr = eventingv1.SchemeGroupVersion.WithResource("brokers")
		}
		err := f.Fixture.Client.Tracker().Update(gvr, object, key.Namespace)
		if err != nil {
			err = f.Fixture.Client.Tracker().Create(gvr, object, key.Namespace)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
	f.SyncEventing()
}

// delete deletes an object.
func (f *fixture) delete(resource, name string) {
	f.t.Helper()
	gvr := messagingv1.SchemeGroupVersion.WithResource(resource)
	if resource == "brokers" {
		gvr = eventingv1.SchemeGroupVersion.WithResource(resource)
	}
	if err := f.Fixture.Client.Tracker().Delete(gvr, key.Namespace, name); err != nil {
		f.t.Fatal(err)
	}
	f.SyncEventing()
}

// condition returns one of the Subscription's conditions as status, reason and message.
func (f *fixture) condition(t duckv1.ConditionType) string {
	f.t.Helper()
	c := f.subscription().Status.Conditions.Get(t)
	if c == nil {
		return "missing"
	}
	return strings.TrimSpace(strings.Join([]string{string(c.Status), c.Reason, c.Message}, " "))
}

// expect compares conditions.
func (f *fixture) expect(want map[duckv1.ConditionType]string) {
	f.t.Helper()
	for t, want := range want {
		if got := f.condition(t); got != want {
			f.t.Errorf("%s is %q, want %q", t, got, want)
		}
	}
}

// consumer returns the consumer of the Subscription in the broker, and whether it exists.
func (f *fixture) consumer() (eventing.Consumer, bool) {
	consumer, ok := f.consumers.consumers[keyOf(key)]
	return consumer, ok
}

// subscription returns a Subscription to Channel orders as the server stores it, with a subscriber that needs no object.
func subscription(changes ...func(*messagingv1.Subscription)) *messagingv1.Subscription {
	s := &messagingv1.Subscription{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "uid", Generation: 1}}
	s.Spec.Channel = duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "orders"}
	s.Spec.Subscriber = &duckv1.Destination{URI: "http://billing/"}
	for _, change := range changes {
		change(s)
	}
	return s
}

// channelOf returns Channel orders, with the status that its controller wrote.
func channelOf(changes ...func(*messagingv1.Channel)) *messagingv1.Channel {
	c := &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "orders", UID: "channel-uid", Generation: 1}}
	c.Spec.ChannelTemplate = &messagingv1.ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{APIVersion: "messaging.knative.dev/v1", Kind: messagingv1.ChannelKindJetStream}}
	now := metav1.NewTime(controllertest.Now)
	c.Status.Conditions.Set(reconciler.True(messagingv1.ChannelConditionBackingChannelReady), now)
	c.Status.Conditions.Set(reconciler.True(duckv1.ConditionReady), now)
	for _, change := range changes {
		change(c)
	}
	return c
}

// channelSays sets the conditions of a Channel.
func channelSays(conditions ...duckv1.Condition) func(*messagingv1.Channel) {
	return func(c *messagingv1.Channel) {
		for _, condition := range conditions {
			c.Status.Conditions.Set(condition, metav1.NewTime(controllertest.Now))
		}
	}
}

// toBroker returns a destination by reference, brokerAt the object that it refers to.
func toBroker(name string) *duckv1.Destination {
	return &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Namespace: key.Namespace, Name: name}}
}

func brokerAt(name, url string) *eventingv1.Broker {
	broker := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: name}}
	broker.Status.Address = &duckv1.Addressable{URL: url}
	return broker
}
