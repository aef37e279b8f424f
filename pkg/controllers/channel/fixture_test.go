package channel

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var key = types.NamespacedName{Namespace: "default", Name: "orders"}

// fakeStreams records the streams that were set.
type fakeStreams struct {
	streams map[eventing.Key]eventing.Stream
	err     error
}

func (f *fakeStreams) SetStream(_ context.Context, stream eventing.Stream) error {
	if f.err == nil {
		f.streams[stream.Key] = stream
	}
	return f.err
}

func (f *fakeStreams) RemoveStream(_ context.Context, key eventing.Key) error {
	if f.err == nil {
		delete(f.streams, key)
	}
	return f.err
}

func addresses(key eventing.Key) duckv1.AddressStatus {
	return duckv1.AddressStatus{Address: &duckv1.Addressable{URL: "http://localhost/channels/" + key.Namespace + "/" + key.Name}}
}

// fixture is a Reconciler with fake dependencies.
type fixture struct {
	*Reconciler
	*controllertest.Fixture
	t       *testing.T
	streams *fakeStreams
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	return newHosted(t, nil, objects...)
}

// newHosted returns a fixture with a host cluster.
func newHosted(t *testing.T, host *destination.Host, objects ...runtime.Object) *fixture {
	t.Helper()
	w := controllertest.New(t, objects...)
	resolver := destination.New(t.Context(), destination.Options{Informers: w.Factory, ClusterDomain: "cluster.local", Host: host, AllowCrossNamespace: true})
	tracker, err := resolver.Track(controllertest.Silent{})
	if err != nil {
		t.Fatal(err)
	}
	subscriptions := w.Factory.Messaging().V1().Subscriptions().Informer()
	if err := channelable.IndexSubscriptions(subscriptions); err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, Fixture: w, streams: &fakeStreams{streams: map[eventing.Key]eventing.Stream{}}}
	f.Reconciler = &Reconciler{
		Client:            w.Client.MessagingV1(),
		Channels:          w.Factory.Messaging().V1().Channels().Lister(),
		SubscriptionIndex: subscriptions.GetIndexer(),
		Streams:           f.streams,
		Addresses:         addresses,
		Host:              host,
		Tracker:           tracker,
		Recorder:          w.Recorder,
		Clock:             w.Clock,
	}
	kind := messagingv1.SchemeGroupVersion.WithKind("Channel").GroupKind()
	f.Policies, err = w.EventPolicies().Of(kind, controllertest.Silent{}, w.Factory.Messaging().V1().Channels().Informer())
	if err != nil {
		t.Fatal(err)
	}
	w.SyncEventing()
	return f
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

func (f *fixture) channel() *messagingv1.Channel {
	f.t.Helper()
	channel, err := f.Fixture.Client.MessagingV1().Channels(key.Namespace).Get(f.t.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return channel
}

// condition returns one of the Channel's conditions as status, reason and message.
func (f *fixture) condition(t duckv1.ConditionType) string {
	f.t.Helper()
	c := f.channel().Status.Conditions.Get(t)
	if c == nil {
		return "missing"
	}
	return strings.TrimSpace(strings.Join([]string{string(c.Status), c.Reason, c.Message}, " "))
}

// channelOf is a Channel as the server stores it, of a template kind.
func channelOf(kind string, changes ...func(*messagingv1.Channel)) *messagingv1.Channel {
	c := &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "channel-uid", Generation: 1}}
	c.Spec.ChannelTemplate = &messagingv1.ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{APIVersion: "messaging.knative.dev/v1", Kind: kind}}
	for _, change := range changes {
		change(c)
	}
	return c
}

func deadLetters(to duckv1.Destination) func(*messagingv1.Channel) {
	return func(c *messagingv1.Channel) { c.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: &to} }
}

// subscription is a Subscription to the Channel whose UID is its name, resolved to http://<name>/ and added.
func subscription(name string, changes ...func(*messagingv1.Subscription)) *messagingv1.Subscription {
	s := &messagingv1.Subscription{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: name, UID: types.UID(name), Generation: 1}}
	s.Spec.Channel = duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: key.Name}
	s.Spec.Subscriber = &duckv1.Destination{URI: "http://" + name + "/"}
	s.Status.ObservedGeneration = 1
	s.Status.PhysicalSubscription.SubscriberURI = s.Spec.Subscriber.URI
	for _, t := range []duckv1.ConditionType{messagingv1.SubscriptionConditionReferencesResolved, messagingv1.SubscriptionConditionAddedToChannel} {
		s.Status.Conditions.Set(reconciler.True(t), metav1.NewTime(controllertest.Now))
	}
	for _, change := range changes {
		change(s)
	}
	return s
}
