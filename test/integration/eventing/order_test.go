package eventing

import (
	"net/http"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// turns records the events that a subscriber handles concurrently, and their order.
type turns struct {
	mu       sync.Mutex
	underWay int      // guarded by mu
	overlaps int      // guarded by mu
	accepted []string // guarded by mu
}

func (o *turns) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.underWay++; o.underWay > 1 {
		o.overlaps++
	}
}

func (o *turns) end(id string, accepted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.underWay--
	if accepted {
		o.accepted = append(o.accepted, id)
	}
}

// TestOrdered checks that with the annotation events are delivered one at a time, in the order of acceptance, including
// retries.
func TestOrdered(t *testing.T) {
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			t.Parallel()
			ns := namespace()
			subscriber := harness.NewSink(t).At("/")
			var order turns
			subscriber.Answer(func(d *harness.Delivery) harness.Answer {
				order.begin()
				// Every fifth event is rejected twice.
				refused := d.ID[len(d.ID)-1]%5 == 0 && d.Attempt <= 2
				order.end(d.ID, !refused)
				if refused {
					return harness.Answer{Code: http.StatusServiceUnavailable}
				}
				return harness.Answer{}
			})
			options := retries(5, "PT0.02S")
			var address string
			if consumer.name == "Trigger" {
				address = shared.broker(t, ns, "orders")
				trigger := newTrigger(ns, "orders", "orders", subscriber.URL, delivered(options))
				metav1.SetMetaDataAnnotation(&trigger.ObjectMeta, duckv1.DeliveryOrderAnnotationKey, duckv1.DeliveryOrdered)
				create(t, shared.Knative.EventingV1().Triggers(ns), trigger)
				shared.triggerIs(t, ns, "orders", "True", "")
			} else {
				address = shared.channel(t, ns, "orders")
				subscription := newSubscription(ns, "orders", "orders", to(uri(subscriber.URL)), with(options))
				metav1.SetMetaDataAnnotation(&subscription.ObjectMeta, duckv1.DeliveryOrderAnnotationKey, duckv1.DeliveryOrdered)
				shared.subscribe(t, subscription)
			}
			events := numbered("event", "order", 100)
			mustPost(t, address, events...)
			if err := subscriber.AwaitAll(bounded(t), ids(events)); err != nil {
				t.Fatal(err)
			}
			order.mu.Lock()
			defer order.mu.Unlock()
			if diff := cmp.Diff(ids(events), order.accepted); diff != "" || order.overlaps > 0 {
				t.Errorf("%d requests came while another was in flight; order (-want +got):\n%s", order.overlaps, diff)
			}
		})
	}
}
