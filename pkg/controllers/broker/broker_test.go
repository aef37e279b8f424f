package broker

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var key = types.NamespacedName{Namespace: "default", Name: "orders"}

// fakeStreams has the streams that were set.
type fakeStreams struct {
	set map[eventing.Key]eventing.Stream
	err error
}

func (f *fakeStreams) SetStream(_ context.Context, stream eventing.Stream) error {
	if f.err == nil {
		f.set[stream.Key] = stream
	}
	return f.err
}

func (f *fakeStreams) RemoveStream(_ context.Context, key eventing.Key) error {
	if f.err == nil {
		delete(f.set, key)
	}
	return f.err
}

// fixture is a Reconciler of Brokers with a fake server.
type fixture struct {
	*controllertest.Fixture
	*Reconciler
	streams *fakeStreams
}

func addresses(key eventing.Key) duckv1.AddressStatus {
	return duckv1.AddressStatus{Address: &duckv1.Addressable{URL: "http://broker/" + key.Namespace + "/" + key.Name}}
}

func start(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	w := controllertest.New(t, objects...)
	streams := &fakeStreams{set: map[eventing.Key]eventing.Stream{}}
	r := &Reconciler{
		Client:    w.Client.EventingV1(),
		Brokers:   w.Factory.Eventing().V1().Brokers().Lister(),
		Streams:   streams,
		Addresses: addresses,
		Recorder:  w.Recorder,
		Clock:     w.Clock,
	}
	controller := reconciler.New("broker", r)
	var err error
	if r.Tracker, err = destination.New(t.Context(), destination.Options{Informers: w.Factory, ClusterDomain: "cluster.local"}).Track(controller); err != nil {
		t.Fatal(err)
	}
	kind := eventingv1.SchemeGroupVersion.WithKind("Broker").GroupKind()
	if r.Policies, err = w.EventPolicies().Of(kind, controller, w.Factory.Eventing().V1().Brokers().Informer()); err != nil {
		t.Fatal(err)
	}
	w.SyncEventing()
	return &fixture{Fixture: w, Reconciler: r, streams: streams}
}

// status returns the status of the Broker once it is reconciled.
func (f *fixture) status(t *testing.T) eventingv1.BrokerStatus {
	t.Helper()
	f.SyncEventing()
	if err := controllertest.Reconcile(t.Context(), f, key); err != nil {
		t.Fatal(err)
	}
	return f.stored(t).Status
}

func (f *fixture) stored(t *testing.T) *eventingv1.Broker {
	t.Helper()
	b, err := f.Fixture.Client.EventingV1().Brokers(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newBroker(changes ...func(*eventingv1.Broker)) *eventingv1.Broker {
	b := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, UID: "one", Generation: 1,
		Annotations: map[string]string{eventingv1.BrokerClassAnnotationKey: eventingv1.BrokerClassJetStream},
	}}
	for _, change := range changes {
		change(b)
	}
	return b
}

func class(name string) func(*eventingv1.Broker) {
	return func(b *eventingv1.Broker) { b.Annotations[eventingv1.BrokerClassAnnotationKey] = name }
}

func deadLetters(name string) func(*eventingv1.Broker) {
	return func(b *eventingv1.Broker) {
		b.Generation++
		b.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{
			Ref: &duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: name},
		}}
	}
}

// brief returns status and reason of conditions: "False NotOwned" each.
func brief(conditions duckv1.Conditions) map[string]string {
	said := map[string]string{}
	for _, c := range conditions {
		said[string(c.Type)] = string(c.Status)
		if c.Reason != "" {
			said[string(c.Type)] += " " + c.Reason
		}
	}
	return said
}

// TestReady checks that a Broker's events are kept and that it has an address; a second reconciliation writes nothing (eventing Broker
// Lifecycle-1, eventing Broker-2 and -3, eventing Content Based Routing-1).
func TestReady(t *testing.T) {
	for _, name := range []string{eventingv1.BrokerClassJetStream, eventingv1.BrokerClassMTChannelBased, ""} {
		t.Run(name, func(t *testing.T) {
			f := start(t, newBroker(class(name), func(b *eventingv1.Broker) {
				b.Spec.Config = &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "knative-eventing", Name: "config-br-default-channel"}
			}))
			status := f.status(t)
			want := map[string]string{
				"Ready": "True", "IngressReady": "True", "FilterReady": "True", "Addressable": "True", "TriggerChannelReady": "True",
				"DeadLetterSinkResolved": "True DeadLetterSinkNotConfigured", "EventPoliciesReady": "True OIDCDisabled",
			}
			if diff := cmp.Diff(want, brief(status.Conditions)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if status.ObservedGeneration != 1 || status.Address.GetURL() != "http://broker/default/orders" {
				t.Errorf("status: %+v", status)
			}
			if diff := cmp.Diff(map[eventing.Key]eventing.Stream{streams.BrokerKey(key): {Key: streams.BrokerKey(key), UID: "one"}}, f.streams.set); diff != "" {
				t.Errorf("streams (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"Normal Ready Became ready"}, f.Events()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			f.status(t)
			if writes := f.Writes(); len(writes) > 0 {
				t.Errorf("writes at rest: %v", writes)
			}
		})
	}
}

// TestForeign checks that Brokers of another class are ignored once their controller has written a status (eventing Broker Lifecycle),
// and that Ready is Unknown until then (eventing Error Signalling-1).
func TestForeign(t *testing.T) {
	f := start(t, newBroker(class("Kafka")))
	status := f.status(t)
	if got, want := brief(status.Conditions), map[string]string{"Ready": "Unknown BrokerClassNotReported"}; !maps.Equal(got, want) || status.ObservedGeneration != 0 {
		t.Errorf("conditions %v of generation %d, want %v of none", got, status.ObservedGeneration, want)
	}
	if !strings.Contains(status.Conditions.Get(duckv1.ConditionReady).Message, `"Kafka"`) {
		t.Errorf("message: %s", status.Conditions.Get(duckv1.ConditionReady).Message)
	}
	if len(f.streams.set)+len(f.Events()) > 0 {
		t.Errorf("streams %v, events", f.streams.set)
	}
	theirs := newBroker(class("Kafka"), func(b *eventingv1.Broker) {
		b.Status.Conditions = duckv1.Conditions{{Type: "ConfigParsed", Status: "False"}}
	})
	f = start(t, theirs)
	if diff := cmp.Diff(theirs.Status, f.status(t)); diff != "" || len(f.Writes()) > 0 {
		t.Errorf("writes %v, status of another controller (-want +got):\n%s", f.Writes(), diff)
	}
}

// TestDeadLetterSink covers the Broker's dead letter sink (eventing Destination Resolution; eventing Broker).
func TestDeadLetterSink(t *testing.T) {
	f := start(t, newBroker(deadLetters("sink")))
	status := f.status(t)
	for condition, want := range map[string]string{
		"Ready": "False DeadLetterSinkNotFound", "DeadLetterSinkResolved": "False DeadLetterSinkNotFound", "IngressReady": "True",
	} {
		if got := brief(status.Conditions)[condition]; got != want {
			t.Errorf("missing: %s is %q, want %q", condition, got, want)
		}
	}
	if status.Address.GetURL() == "" || status.DeadLetterSinkURI != "" {
		t.Errorf("missing: %+v", status)
	}
	sink := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sink"}}
	sink.Status.Address = &duckv1.Addressable{URL: "http://sink"}
	if err := f.Fixture.Client.Tracker().Add(sink); err != nil {
		t.Fatal(err)
	}
	status = f.status(t)
	if got := brief(status.Conditions); got["Ready"] != "True" || got["DeadLetterSinkResolved"] != "True" || status.DeadLetterSinkURI != "http://sink" {
		t.Errorf("there: %v, %q", got, status.DeadLetterSinkURI)
	}
}

// TestStreamFails checks that a Broker reports why its events cannot be kept, and that a published address stays (eventing Error Signalling).
func TestStreamFails(t *testing.T) {
	full := errors.New("no space left on device")
	f := start(t, newBroker())
	f.streams.err = full
	if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, full) {
		t.Fatalf("got %v", err)
	}
	want := map[string]string{
		"Ready": "False StreamFailed", "IngressReady": "False StreamFailed", "FilterReady": "Unknown StreamFailed",
		"Addressable": "Unknown StreamFailed", "TriggerChannelReady": "False StreamFailed",
		"DeadLetterSinkResolved": "True DeadLetterSinkNotConfigured", "EventPoliciesReady": "True OIDCDisabled",
	}
	status := f.stored(t).Status
	if diff := cmp.Diff(want, brief(status.Conditions)); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
	if ready := status.Conditions.Get(duckv1.ConditionReady); ready.Message != "The Broker's events cannot be kept: no space left on device" {
		t.Errorf("message: %q", ready.Message)
	}
	if status.Address != nil {
		t.Errorf("address: %v", status.Address)
	}
	f.streams.err = nil
	if got := brief(f.status(t).Conditions)["Ready"]; got != "True" {
		t.Errorf("later: Ready is %q", got)
	}
	f.streams.err = full
	f.SyncEventing()
	if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, full) {
		t.Fatalf("got %v", err)
	}
	status = f.stored(t).Status
	if got := brief(status.Conditions); got["Ready"] != "False StreamFailed" || got["Addressable"] != "True" || status.Address.GetURL() == "" {
		t.Errorf("again: %v, %v", got, status.Address)
	}
}

// TestWithoutAddress covers a Broker without a served scheme: its earlier address is removed.
func TestWithoutAddress(t *testing.T) {
	f := start(t, newBroker())
	if got := f.status(t); got.Address == nil {
		t.Fatal("no address")
	}
	f.Addresses = func(eventing.Key) duckv1.AddressStatus { return duckv1.AddressStatus{} }
	status := f.status(t)
	got := brief(status.Conditions)
	if status.Address != nil || got["Addressable"] != "False HTTPSNotServed" || got["Ready"] != "False HTTPSNotServed" || got["IngressReady"] != "True" {
		t.Errorf("address %v, conditions %v", status.Address, got)
	}
	f.Addresses = addresses
	if got := brief(f.status(t).Conditions)["Ready"]; got != "True" {
		t.Errorf("later: Ready is %q", got)
	}
}

// TestRemove checks that the stream of a deleted or replaced Broker is removed, but not of one that is being deleted (eventing Broker Lifecycle).
func TestRemove(t *testing.T) {
	f := start(t, newBroker())
	brokers := f.Fixture.Client.EventingV1().Brokers("default")
	f.status(t)
	if err := brokers.Delete(t.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.SyncEventing()
	f.streams.err = errors.New("not now")
	if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, f.streams.err) {
		t.Errorf("got %v, want an error to retry", err)
	}
	f.streams.err = nil
	if err := controllertest.Reconcile(t.Context(), f, key); err != nil || len(f.streams.set) > 0 {
		t.Errorf("gone: %v, %v", f.streams.set, err)
	}
	recreated := newBroker(func(b *eventingv1.Broker) { b.UID = "two" })
	if err := f.Fixture.Client.Tracker().Add(recreated); err != nil {
		t.Fatal(err)
	}
	f.status(t)
	if got := f.streams.set[streams.BrokerKey(key)].UID; got != "two" {
		t.Errorf("recreated: the stream is of %q", got)
	}
	recreated.DeletionTimestamp, recreated.Finalizers = &metav1.Time{Time: controllertest.Now}, []string{"example.com/wait"}
	if err := f.Fixture.Client.Tracker().Update(eventingv1.SchemeGroupVersion.WithResource("brokers"), recreated, "default"); err != nil {
		t.Fatal(err)
	}
	f.status(t)
	// It still reports that it is ready.
	if len(f.streams.set) == 0 {
		t.Error("being deleted: the stream is removed")
	}
}

// TestConflict expects an error, so that the key is retried, if the Broker changed meanwhile.
func TestConflict(t *testing.T) {
	f := start(t, newBroker())
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "brokers"}, key.Name, errors.New("changed"))
	f.Fail("update", "brokers", conflict)
	if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, conflict) {
		t.Errorf("got %v, want %v", err, conflict)
	}
	if events := f.Events(); len(events) > 0 {
		t.Errorf("events: %v", events)
	}
}

// TestNew checks that the controller observes the dependencies of a Broker: itself, and its dead letter sink (eventing Destination
// Resolution).
func TestNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := controllertest.New(t, newBroker(deadLetters("sink")))
		resolver := destination.New(t.Context(), destination.Options{Informers: w.Factory, ClusterDomain: "cluster.local"})
		streams := &fakeStreams{set: map[eventing.Key]eventing.Stream{}}
		r := &Reconciler{Client: w.Client.EventingV1(), Recorder: w.Recorder, Clock: w.Clock, Streams: streams, Addresses: addresses}
		controller, err := r.Controller(w.Factory.Eventing().V1(), w.EventPolicies(), resolver)
		if err != nil {
			t.Fatal(err)
		}
		w.Run(controller, func() {
			ready := func() corev1.ConditionStatus {
				synctest.Wait()
				b, err := w.Client.EventingV1().Brokers("default").Get(t.Context(), key.Name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return b.Status.Conditions.Get(duckv1.ConditionReady).Status
			}
			if got := ready(); got != corev1.ConditionFalse {
				t.Errorf("without its dead letter sink: Ready is %s", got)
			}
			sink := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sink"}}
			sink.Status.Address = &duckv1.Addressable{URL: "http://sink"}
			if _, err := w.Client.ServingV1().Services("default").Create(t.Context(), sink, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := ready(); got != corev1.ConditionTrue {
				t.Errorf("with its dead letter sink: Ready is %s", got)
			}
			if err := w.Client.EventingV1().Brokers("default").Delete(t.Context(), key.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if len(streams.set) > 0 {
				t.Errorf("streams: %v", streams.set)
			}
		})
	})
}
