package eventing

import (
	"fmt"
	"net/http"
	"testing"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestRetriesSurviveRestart checks that a restarted server continues the retries with the remaining attempts: events are not
// sent more often than their Trigger specifies (eventing DeliverySpec; eventing Event Delivery-3).
func TestRetriesSurviveRestart(t *testing.T) {
	const retry, restarts = 6, 2
	ns := namespace()
	sink := harness.NewSink(t)
	subscriber, dead := sink.At("/"), sink.At("/dead")
	subscriber.AnswerCode(http.StatusServiceUnavailable)
	s := start(t, t.TempDir())
	address := s.broker(t, ns, "orders")
	options := retries(retry, "PT0.5S")
	options.DeadLetterSink = &duckv1.Destination{URI: dead.URL}
	s.trigger(t, ns, "orders", "orders", subscriber.URL, delivered(options))
	events := numbered("event", "order", 20)
	mustPost(t, address, events...)
	for restart := range restarts {
		if err := subscriber.AwaitAttempts(bounded(t), func(attempts map[string]int) error {
			for _, id := range ids(events) {
				if attempts[id] < 2*restart+1 {
					return fmt.Errorf("event %s was sent %d times", id, attempts[id])
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.restart(); err != nil {
			t.Fatal(err)
		}
	}
	if err := dead.AwaitAll(bounded(t), ids(events)); err != nil {
		t.Error(err)
	}
	for id, attempts := range subscriber.Attempts() {
		if attempts != retry+1 {
			t.Errorf("event %s was sent %d times, want %d", id, attempts, retry+1)
		}
	}
}

// TestFirstEventAfterRestart checks that the first event that a restarted server accepts is delivered to all Triggers that were
// ready before (eventing Trigger Lifecycle-7; eventing Content Based Routing-5).
func TestFirstEventAfterRestart(t *testing.T) {
	const triggers, restarts = 100, 3
	ns := namespace()
	sink := harness.NewSink(t)
	at := func(i int) *harness.Subscriber { return sink.At(fmt.Sprintf("/%d", i)) }
	s := start(t, t.TempDir())
	address := s.broker(t, ns, "orders")
	s.createTriggers(t, ns, "orders", triggers, func(i int) string { return at(i).URL }, func(int) []triggerOption { return nil })
	for restart := range restarts {
		s.Kill()
		restarted := make(chan error, 1)
		go func() { restarted <- s.restart() }()
		e := event{id: fmt.Sprintf("first-%d", restart), kind: "order"}
		harness.Eventually(t, "an event is accepted", func() error {
			a, err := post(t.Context(), address, e)
			if err == nil && a.code != http.StatusAccepted {
				err = fmt.Errorf("it got %d %s", a.code, a.body)
			}
			return err
		})
		if err := <-restarted; err != nil {
			t.Fatal(err)
		}
		ctx := bounded(t)
		for i := range triggers {
			if err := at(i).AwaitAll(ctx, []string{e.id}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
