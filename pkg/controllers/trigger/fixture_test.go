package trigger

import (
	"context"
	"testing"

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
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var (
	services = servingv1.SchemeGroupVersion.WithResource("services")
	brokers  = eventingv1.SchemeGroupVersion.WithResource("brokers")
	triggers = eventingv1.SchemeGroupVersion.WithResource("triggers")
)

var key = types.NamespacedName{Namespace: "default", Name: "bill"}

// fakeConsumers has the consumers that were set. SetConsumer fails while err is set.
type fakeConsumers struct {
	set    map[eventing.Key]eventing.Consumer
	health eventing.Health
	err    error
	// called runs before a consumer is set.
	called func()
}

func newConsumers() *fakeConsumers {
	return &fakeConsumers{set: map[eventing.Key]eventing.Consumer{}, called: func() {}}
}

func (f *fakeConsumers) SetConsumer(_ context.Context, consumer eventing.Consumer) error {
	f.called()
	if f.err == nil {
		f.set[consumer.Key] = consumer
	}
	return f.err
}

func (f *fakeConsumers) RemoveConsumer(_ context.Context, key eventing.Key) error {
	if f.err == nil {
		delete(f.set, key)
	}
	return f.err
}

func (f *fakeConsumers) Health(eventing.Key) eventing.Health { return f.health }

// fixture is a Reconciler of Triggers with a fake server.
type fixture struct {
	*controllertest.Fixture
	r         *Reconciler
	consumers *fakeConsumers
	accounts  *controllertest.Accounts
}

func start(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	w, consumers := controllertest.New(t, objects...), newConsumers()
	informers := w.Factory.Eventing().V1()
	r := &Reconciler{
		Client:    w.Client.EventingV1(),
		Triggers:  informers.Triggers().Lister(),
		Brokers:   informers.Brokers().Lister(),
		Consumers: consumers,
		Recorder:  w.Recorder,
		Clock:     w.Clock,
	}
	f := &fixture{Fixture: w, r: r, consumers: consumers}
	f.host(t, controllertest.NewAccounts(false))
	var err error
	if r.Tracker, err = destination.New(t.Context(), destination.Options{Informers: w.Factory, ClusterDomain: "cluster.local"}).Track(reconciler.New("trigger", r)); err != nil {
		t.Fatal(err)
	}
	w.SyncEventing()
	return f
}

// host replaces the host cluster with the ServiceAccounts of Triggers.
func (f *fixture) host(t *testing.T, accounts *controllertest.Accounts) {
	t.Helper()
	f.accounts, f.r.Accounts = accounts, accounts.Of(t, eventingv1.SchemeGroupVersion.WithKind("Trigger"))
}

// reconcile returns the status of the Trigger once it is reconciled.
func (f *fixture) reconcile(t *testing.T) eventingv1.TriggerStatus {
	t.Helper()
	f.SyncEventing()
	f.accounts.Sync(t)
	if err := controllertest.Reconcile(t.Context(), f.r, key); err != nil {
		t.Fatal(err)
	}
	return f.stored(t)
}

func (f *fixture) stored(t *testing.T) eventingv1.TriggerStatus {
	t.Helper()
	trigger, err := f.Client.EventingV1().Triggers(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return trigger.Status
}

// put stores an object. It keeps the status of Triggers, which only the controller writes.
func (f *fixture) put(t *testing.T, resource schema.GroupVersionResource, obj runtime.Object) {
	t.Helper()
	if trigger, ok := obj.(*eventingv1.Trigger); ok {
		trigger.Status = f.stored(t)
	}
	if err := f.Client.Tracker().Update(resource, obj, key.Namespace); err != nil {
		t.Fatal(err)
	}
}

// drop deletes an object of a resource.
func (f *fixture) drop(t *testing.T, resource schema.GroupVersionResource, name string) {
	t.Helper()
	if err := f.Client.Tracker().Delete(resource, key.Namespace, name); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) add(t *testing.T, obj runtime.Object) {
	t.Helper()
	if err := f.Client.Tracker().Add(obj); err != nil {
		t.Fatal(err)
	}
}

func service(name, url string) *servingv1.Service {
	s := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1}}
	if url != "" {
		s.Status.Address = &duckv1.Addressable{URL: url}
	}
	return s
}

func to(name string) *duckv1.Destination {
	return &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Namespace: "default", Name: name}}
}

// newTrigger returns a Trigger of the Broker orders whose subscriber is the Service billing.
func newTrigger(changes ...func(*eventingv1.Trigger)) *eventingv1.Trigger {
	trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "trigger-uid", Generation: 1}}
	trigger.Spec.Broker = "orders"
	trigger.Spec.Subscriber = *to("billing")
	eventingv1.SetDefaults_Trigger(trigger)
	for _, change := range changes {
		change(trigger)
	}
	return trigger
}

// newBroker returns a Broker that is ready, changed by some functions.
func newBroker(changes ...func(*eventingv1.Broker)) *eventingv1.Broker {
	b := &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "orders", UID: "broker-uid", Generation: 1,
		Annotations: map[string]string{eventingv1.BrokerClassAnnotationKey: eventingv1.BrokerClassJetStream},
	}}
	b.Status.ObservedGeneration = 1
	b.Status.Address = &duckv1.Addressable{URL: "http://broker/default/orders"}
	says(reconciler.True(duckv1.ConditionReady))(b)
	for _, change := range changes {
		change(b)
	}
	return b
}

func says(ready duckv1.Condition) func(*eventingv1.Broker) {
	return func(b *eventingv1.Broker) { b.Status.Conditions.Set(ready, metav1.NewTime(controllertest.Now)) }
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
