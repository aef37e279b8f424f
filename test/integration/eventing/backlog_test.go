package eventing

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// postConcurrently posts events over a number of connections and returns the sorted response times. All events must be
// accepted.
func postConcurrently(t *testing.T, address string, connections int, events []event) []time.Duration {
	t.Helper()
	latencies := make([]time.Duration, len(events))
	var running sync.WaitGroup
	for c := range connections {
		running.Go(func() {
			for i := c; i < len(events); i += connections {
				began := time.Now()
				a, err := post(t.Context(), address, events[i])
				latencies[i] = time.Since(began)
				if err != nil || a.code != http.StatusAccepted {
					t.Errorf("event %s got %+v, %v", events[i].id, a, err)
					return
				}
			}
		})
	}
	running.Wait()
	if t.Failed() {
		t.FailNow()
	}
	slices.Sort(latencies)
	return latencies
}

// TestSubscriberDown checks that a subscriber that was down receives all events once it is up, without effect on the sender and
// on the subscriber of another Trigger (eventing Event Acknowledgement and Delivery Retry-6 and -7).
func TestSubscriberDown(t *testing.T) {
	const count, connections = 10_000, 16
	// retryDelay is the minimum delay of anything that waits for the subscriber.
	const retryDelay = 2 * time.Second
	ns := namespace()
	down, healthy := harness.NewSink(t), harness.NewSink(t).At("/")
	unavailable := down.At("/")
	address := shared.broker(t, ns, "orders")
	shared.trigger(t, ns, "orders", "unavailable", unavailable.URL, delivered(retries(1000, "PT2S")))
	shared.trigger(t, ns, "orders", "healthy", healthy.URL)

	before := numbered("before", "order", count/5)
	usual := postConcurrently(t, address, connections, before)
	for _, subscriber := range []*harness.Subscriber{unavailable, healthy} {
		if err := subscriber.AwaitAll(bounded(t), ids(before)); err != nil {
			t.Fatal(err)
		}
	}

	down.Stop()
	events := numbered("during", "order", count)
	began := time.Now()
	meanwhile := postConcurrently(t, address, connections, events)
	posted := time.Since(began)
	if err := healthy.AwaitAll(bounded(t), ids(events)); err != nil {
		t.Fatal(err)
	}
	behind := time.Since(began) - posted
	t.Logf("responses to the sender took %s, 99 %% at most %s; with the subscriber down %s and %s; another subscriber had received all %s after the last",
		usual[len(usual)/2], usual[len(usual)*99/100], meanwhile[count/2], meanwhile[count*99/100], behind)
	if meanwhile[count/2] > retryDelay {
		t.Errorf("with a subscriber down half of the answers to the sender took %s and longer, want less than %s", meanwhile[count/2], retryDelay)
	}

	down.Start(t)
	back := time.Now()
	if err := unavailable.AwaitAll(bounded(t), ids(events)); err != nil {
		t.Error(err)
	}
	t.Logf("the subscriber had received all events %s after it was started again", time.Since(back).Round(time.Millisecond))
}

// TestSubscriberMoves checks that the next attempt of a failed delivery uses the current address of its Trigger.
func TestSubscriberMoves(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	left, moved := sink.At("/left"), sink.At("/moved")
	left.AnswerCode(http.StatusServiceUnavailable)
	address := shared.broker(t, ns, "orders")
	shared.trigger(t, ns, "orders", "orders", left.URL, delivered(retries(1000, "PT0.5S")))
	events := numbered("event", "order", 1000)
	postConcurrently(t, address, 8, events)
	if err := left.AwaitAttempts(bounded(t), func(attempts map[string]int) error {
		if len(attempts) == 0 {
			return fmt.Errorf("no event was sent to %s", left.URL)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	harness.Edit(t, shared.Knative.EventingV1().Triggers(ns), "orders", func(trigger *eventingv1.Trigger) {
		trigger.Spec.Subscriber.URI = moved.URL
	})
	if err := moved.AwaitAll(bounded(t), ids(events)); err != nil {
		t.Error(err)
	}
	if received := left.Received(); len(received) > 0 {
		t.Errorf("the subscriber at the previous address received %d events", len(received))
	}
}
