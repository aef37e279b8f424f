package eventing

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// namespace and brokerName are the names of the Broker of a benchmark.
const namespace, brokerName = "default", "bench"

func newBroker(name string) *eventingv1.Broker {
	return &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// newTrigger returns a Trigger for events of one type.
func newTrigger(broker, name, ofType, subscriber string) *eventingv1.Trigger {
	return &eventingv1.Trigger{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: eventingv1.TriggerSpec{
			Broker:     broker,
			Filter:     &eventingv1.TriggerFilter{Attributes: map[string]string{"type": ofType}},
			Subscriber: duckv1.Destination{URI: subscriber},
		},
	}
}

// broker creates a Broker with Triggers, the first of which match all events, waits until all are ready, and returns the
// Broker's address.
func (s *server) broker(b *testing.B, triggers, matching int) string {
	b.Helper()
	all := make([]*eventingv1.Trigger, triggers)
	for i := range all {
		ofType, subscriber := eventType, ""
		if i < matching {
			subscriber = subscribers.at(i)
		} else {
			ofType, subscriber = fmt.Sprintf("%s.other-%d", eventType, i), subscribers.url+"/none"
		}
		all[i] = newTrigger(brokerName, fmt.Sprintf("%s-%d", brokerName, i), ofType, subscriber)
	}
	brokers := s.Knative.EventingV1().Brokers(namespace)
	create(b, brokers, []*eventingv1.Broker{newBroker(brokerName)})
	create(b, s.Knative.EventingV1().Triggers(namespace), all)
	broker, err := brokers.Get(b.Context(), brokerName, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return broker.Status.Address.GetURL()
}

// creator is the part of a typed client that creates objects and watches them.
type creator[O any] interface {
	Create(ctx context.Context, object O, options metav1.CreateOptions) (O, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// create creates objects, eight at a time, and waits until all are ready.
func create[O metav1.Object](b *testing.B, client creator[O], objects []O) {
	b.Helper()
	events, err := client.Watch(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer events.Stop()
	waiting := make(map[string]bool, len(objects))
	for _, object := range objects {
		waiting[object.GetName()] = true
	}
	var group sync.WaitGroup
	defer group.Wait()
	for worker := range 8 {
		group.Go(func() {
			for i := worker; i < len(objects); i += 8 {
				if _, err := client.Create(b.Context(), objects[i], metav1.CreateOptions{}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	for len(waiting) > 0 {
		select {
		case event, open := <-events.ResultChan():
			if !open {
				b.Fatalf("the watch ended when %d objects were not ready", len(waiting))
			}
			if object, ok := event.Object.(metav1.Object); ok && isReady(event.Object) {
				delete(waiting, object.GetName())
			}
		case <-time.After(time.Minute):
			b.Fatalf("%d of %d objects are not ready, and no other became so for a minute", len(waiting), len(objects))
		}
	}
}

// isReady reports whether a Broker or Trigger is ready.
func isReady(object runtime.Object) bool {
	var conditions duckv1.Conditions
	switch o := object.(type) {
	case *eventingv1.Broker:
		conditions = o.Status.Conditions
	case *eventingv1.Trigger:
		conditions = o.Status.Conditions
	}
	ready := conditions.Get(duckv1.ConditionReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}
