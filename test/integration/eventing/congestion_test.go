package eventing

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestCongestion checks that a subscriber that sustains a few requests at a time receives about that many, and all events,
// although it rejects the excess, and that neither it nor a subscriber that does not respond delays others (eventing Event
// Acknowledgement and Delivery Retry-6 and -7).
func TestCongestion(t *testing.T) {
	const count, capacity = 300, 4
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			t.Parallel()
			ns := namespace()
			sink := harness.NewSink(t)
			busy, hung, healthy := sink.At("/busy"), sink.At("/hung"), sink.At("/healthy")
			var underWay atomic.Int32
			busy.Answer(func(*harness.Delivery) harness.Answer {
				defer underWay.Add(-1)
				if underWay.Add(1) > capacity {
					return harness.Answer{Code: http.StatusTooManyRequests}
				}
				<-time.After(5 * time.Millisecond)
				return harness.Answer{}
			})
			hung.Answer(func(*harness.Delivery) harness.Answer { return harness.Answer{Delay: time.Hour} })
			address := consumer.consume(t, ns, busy.URL, retries(1000, "PT0.05S"))
			for name, subscriber := range map[string]*harness.Subscriber{"hung": hung, "healthy": healthy} {
				if consumer.name == "Trigger" {
					shared.trigger(t, ns, "orders", name, subscriber.URL)
				} else {
					shared.subscribe(t, newSubscription(ns, "orders", name, to(uri(subscriber.URL))))
				}
			}
			events := numbered("event", "order", count)
			began := time.Now()
			postConcurrently(t, address, 8, events)
			for _, s := range []*harness.Subscriber{healthy, busy} {
				if err := s.AwaitAll(bounded(t), ids(events)); err != nil {
					t.Fatal(err)
				}
				t.Logf("%s had received all %d events after %s and %d requests", s.URL, count, time.Since(began).Round(time.Millisecond), s.Requests())
			}
			if n := busy.Requests(); n > 4*count {
				t.Errorf("the busy subscriber got %d requests for %d events", n, count)
			}
			if n := hung.Requests(); n > 256 {
				t.Errorf("the subscriber that does not answer got %d requests", n)
			}
		})
	}
}
