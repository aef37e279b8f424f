package broker

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// full makes the log reject all appends but accepted events.
func (w *fixture) full() {
	w.log.setRefuse(func(queue string) error {
		if queue != delivery.SharedQueue {
			return eventlog.ErrFull
		}
		return nil
	})
}

// acceptAtOnce makes the Broker accept a batch of events.
func (w *fixture) acceptAtOnce(ids ...string) {
	w.Helper()
	events := make([]*event.Event, 0, len(ids))
	for _, id := range ids {
		events = append(events, newEvent(id))
	}
	w.must(w.Accept(w.Context(), brokerKey, events))
}

// A log that is full of events to retry is emptied when the subscriber accepts them, although no retry can be written (eventing Event Delivery).
func TestRetriesWhileFull(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a", withDelivery(eventing.Delivery{Retry: 5, Policy: eventing.BackoffLinear, Backoff: time.Second})))
		w.answer("a", failing(3, 503))
		w.full()
		w.acceptAtOnce(numbers(300)...)
		w.after(10 * time.Minute)
		w.expect("received", w.sorted("a"), strings.Join(numbers(300), " "))
		w.log.expectLeft(t, "b", nil)
	})
}

// Retries that cannot be written are counted too (eventing Event Delivery).
func TestRetriesWhileFullEnd(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a", withDeadLetter, withDelivery(eventing.Delivery{Retry: 2, Policy: eventing.BackoffLinear, Backoff: time.Second})))
		w.answer("a", always(500))
		w.full()
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		if attempts := len(w.attempts("a")); attempts != 3 {
			t.Errorf("%d attempts were made, want 3", attempts)
		}
		w.expect("dead letters", w.received("dead"), "1")
		w.log.expectLeft(t, "b", nil)
	})
}

// Deliveries to a hanging subscriber continue once it answers, although they cannot be written to its queue.
func TestHungWhileFull(t *testing.T) {
	run(t, func(w *fixture) {
		var answers atomic.Bool
		w.set(trigger("a", withDelivery(eventing.Delivery{Retry: 100, Policy: eventing.BackoffLinear, Backoff: time.Second})))
		w.answer("a", func(int) (time.Duration, sender.Result) {
			if !answers.Load() {
				_, r := unreachable(0)
				return 10 * time.Second, r
			}
			return 0, status(202)
		})
		w.full()
		w.acceptAtOnce(numbers(300)...)
		w.after(time.Minute)
		answers.Store(true)
		w.after(10 * time.Minute)
		w.expect("received", w.sorted("a"), strings.Join(numbers(300), " "))
		w.log.expectLeft(t, "b", nil)
	})
}

// Retries with a long delay do not use all memory of a queue, regardless of their size, so that it has room for others.
func TestLargeRetries(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a", withDelivery(eventing.Delivery{Retry: 1, Policy: eventing.BackoffLinear, Backoff: time.Hour})))
		w.answer("a", always(500))
		for _, id := range numbers(100) {
			e := newEvent(id)
			e.Data = make([]byte, 100<<10)
			w.must(w.Accept(w.Context(), brokerKey, []*event.Event{e}))
			w.after(time.Second)
		}
		found, _ := w.consumers.Load(trigger("a").Key)
		waiting := found.(*consumer).subscriber.Status().WaitingBytes
		if waiting == 0 || waiting > delivery.QueueBytes*3/4 {
			t.Errorf("%d bytes wait in memory, want some, and at most three quarters of %d", waiting, delivery.QueueBytes)
		}
		w.answer("a", nil)
		w.after(3 * time.Hour)
		w.expect("received", w.sorted("a"), strings.Join(numbers(100), " "))
		w.log.expectLeft(t, "b", nil)
	})
}
