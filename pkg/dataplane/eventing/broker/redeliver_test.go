package broker

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// redeliver queues stored events with some IDs for a consumer.
func (w *fixture) redeliver(to eventing.Consumer, ids ...string) {
	w.Helper()
	for _, id := range ids {
		e := newEvent(id, ttl("7"))
		e.Headers = []event.Header{{Name: "traceparent", Value: "00-1-2-01"}}
		w.must(w.Redeliver(w.Context(), to.Key, to.UID, []*event.Event{e}))
	}
}

// TestRedeliver delivers stored events to one consumer, whatever its filters, with their attributes and headers.
func TestRedeliver(t *testing.T) {
	run(t, func(w *fixture) {
		a := trigger("a", func(c *eventing.Consumer) { c.Attributes = map[string]string{"type": "other"} })
		w.set(a, trigger("b"))
		w.redeliver(a, "1", "2")
		w.after(time.Second)
		w.expectReceived(map[string]string{"a": "1 2", "b": ""})
		if n := w.count(a.Key); n.matched.Load() != 2 || n.redelivered.Load() != 2 || n.delivered.Load() != 2 {
			t.Errorf("%d matched, %d redelivered, %d delivered, want 2 each", n.matched.Load(), n.redelivered.Load(), n.delivered.Load())
		}
		for _, c := range w.attempts("a") {
			if left, _ := c.event.Get(event.TTL); left != "7" || len(c.event.Headers) != 1 || c.event.Headers[0].Value != "00-1-2-01" {
				t.Errorf("event %s was sent with %v and %v", c.id, c.event.Attributes, c.event.Headers)
			}
		}
		w.after(2 * time.Minute)
		if left := w.log.left(brokerKey.Name); len(left) > 0 {
			t.Errorf("records remain: %v", left)
		}
	})
}

// TestRedeliverInOrder keeps the order among stored and accepted events of a consumer with ordered delivery, across crashes.
func TestRedeliverInOrder(t *testing.T) {
	run(t, func(w *fixture) {
		a := trigger("a", ordered, withDelivery(linear(1000, time.Second)))
		w.set(a)
		w.answer("a", always(500))
		w.accept(brokerKey, "0")
		w.redeliver(a, "1", "2")
		w.accept(brokerKey, "3")
		w.redeliver(a, "4")
		w.after(5 * time.Second)
		w.crash()
		w.answer("a", always(202))
		w.after(time.Minute)
		w.expect("a received", w.received("a"), "0 1 2 3 4")
	})
}

// TestRedeliverFailure keeps an event that fails again as a dead letter.
func TestRedeliverFailure(t *testing.T) {
	runStored(t, func(w *fixture, store *letterStore) {
		a := trigger("a")
		w.set(a)
		w.answer("a", func(int) (time.Duration, sender.Result) { return 0, status(400) })
		w.redeliver(a, "1")
		w.after(time.Minute)
		if len(store.letters) != 1 || store.letters[0].ConsumerUID != a.UID {
			t.Errorf("dead letters %+v", store.letters)
		}
	})
}

// TestRedeliverNotServed rejects events for consumers that this replica does not deliver to.
func TestRedeliverNotServed(t *testing.T) {
	run(t, func(w *fixture) {
		a := trigger("a")
		w.set(a)
		refused := func(what string, to eventing.Consumer) {
			t.Helper()
			for _, err := range []error{w.Redeliver(w.Context(), to.Key, to.UID, []*event.Event{newEvent("1")}), backlogErr(w, to)} {
				if !errors.Is(err, eventing.ErrNotFound) {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
		refused("unknown", trigger("b"))
		later := a
		later.UID = "later"
		refused("another of the same name", later)
		w.ReleaseStream(brokerKey)
		refused("released", a)
		w.expect("a received", w.received("a"), "")
	})
}

func backlogErr(w *fixture, to eventing.Consumer) error {
	_, err := w.Backlog(w.Context(), to.Key, to.UID)
	return err
}

// TestBacklog counts what waits in the queue of a consumer.
func TestBacklog(t *testing.T) {
	run(t, func(w *fixture) {
		a := trigger("a", withDelivery(linear(1000, time.Minute)))
		w.set(a)
		w.answer("a", always(500))
		w.redeliver(a, numbers(20)...)
		w.after(time.Second)
		if n, err := w.Backlog(w.Context(), a.Key, a.UID); err != nil || n == 0 {
			t.Errorf("backlog %d, %v", n, err)
		}
		w.answer("a", always(202))
		w.after(10 * time.Minute)
		if n, err := w.Backlog(w.Context(), a.Key, a.UID); err != nil || n != 0 {
			t.Errorf("backlog %d, %v", n, err)
		}
	})
}

// TestRedeliverMemory rejects events beyond the memory of the namespace.
func TestRedeliverMemory(t *testing.T) {
	run(t, func(w *fixture) {
		a := trigger("a")
		w.set(a)
		for w.budget.Reserve("default", 1<<20) {
			continue
		}
		e := newEvent("1")
		e.Data = []byte(strings.Repeat("x", 1<<20))
		if err := w.Redeliver(w.Context(), a.Key, a.UID, []*event.Event{e}); !errors.Is(err, eventing.ErrFull) {
			t.Errorf("without memory: %v", err)
		}
	})
}

// TestReplayToBroker delivers stored events to the Triggers whose filters match, with their attributes and headers, and neither counts nor archives
// them again. Another Broker of the same name does not get them.
func TestReplayToBroker(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"), trigger("b", func(c *eventing.Consumer) { c.Attributes = map[string]string{"type": "other"} }), trigger("c", ordered))
		w.accept(brokerKey, "0")
		w.after(time.Second)
		before := w.stream(brokerKey).counts.accepted.Load()
		e := newEvent("1", ttl("7"))
		e.Headers = []event.Header{{Name: "traceparent", Value: "00-1-2-01"}}
		w.must(w.Replay(w.Context(), brokerKey, w.stream(brokerKey).spec.UID, []*event.Event{e, newEvent("2")}))
		w.after(time.Second)
		w.expectReceived(map[string]string{"a": "0 1 2", "b": "", "c": "0 1 2"})
		for _, c := range w.attempts("a") {
			if left, _ := c.event.Get(event.TTL); c.id == "1" && (left != "7" || len(c.event.Headers) != 1 || c.event.Headers[0].Value != "00-1-2-01") {
				t.Errorf("event %s was sent with %v and %v", c.id, c.event.Attributes, c.event.Headers)
			}
		}
		if after := w.stream(brokerKey).counts.accepted.Load(); after != before {
			t.Errorf("%d replayed events were counted as accepted", after-before)
		}
		for name, want := range map[string]int64{"a": 2, "b": 0, "c": 2} {
			if n := w.count(trigger(name).Key); n.redelivered.Load() != want || n.matched.Load() < want || n.matched.Load() != n.delivered.Load() {
				t.Errorf("%s: %d redelivered, %d matched, %d delivered", name, n.redelivered.Load(), n.matched.Load(), n.delivered.Load())
			}
		}
		if err := w.Replay(w.Context(), brokerKey, "uid-other", []*event.Event{e}); !errors.Is(err, eventing.ErrNotFound) {
			t.Errorf("to another Broker: %v", err)
		}
		if _, err := w.Backlog(w.Context(), brokerKey, "uid-other"); !errors.Is(err, eventing.ErrNotFound) {
			t.Errorf("backlog of another Broker: %v", err)
		}
	})
}
