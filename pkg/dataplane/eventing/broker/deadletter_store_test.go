package broker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// letterStore is a dead letter store that answers as the endpoint http://dead-<consumer>/ does: other codes than 2xx mean that the log is
// unavailable.
type letterStore struct {
	*fixture
	// fail returns the error of an addition, or nil.
	fail    func() error
	letters []deadletter.Letter
}

// Add implements DeadLetters.
func (s *letterStore) Add(ctx context.Context, l *deadletter.Letter) error {
	if s.fail != nil {
		if err := s.fail(); err != nil {
			return err
		}
	}
	r := s.send(ctx, l.Event, eventing.Endpoint{URL: "http://dead-" + l.Consumer.Name + "/"}, sender.Attempt{})
	if r.Err != nil {
		return fmt.Errorf("%w: %w", eventlog.ErrUnavailable, r.Err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.letters = append(s.letters, *l)
	return nil
}

// withoutStore drops undeliverable events.
func withoutStore(c *eventing.Consumer) { c.NoDeadLetterStore = true }

// runStored runs a test in a fixture with a dead letter store.
func runStored(t *testing.T, test func(w *fixture, store *letterStore)) {
	t.Helper()
	run(t, func(w *fixture) {
		store := &letterStore{fixture: w}
		w.letters = store
		w.options.DeadLetters = store
		test(w, store)
	})
}

// TestStore keeps undeliverable events with the reason, unless the consumer opts out. It covers eventing Event Delivery-13.
func TestStore(t *testing.T) {
	runStored(t, func(w *fixture, store *letterStore) {
		stored, out := trigger("a", withDelivery(linear(2, time.Second))), trigger("out", withoutStore)
		w.set(stored, out, trigger("sink", withDeadLetter), trigger("ok"))
		refused := sender.Result{Code: 400, Err: errors.New("POST http://a/: 400"), Body: []byte("no"), Retryable: true}
		w.answer("a", func(int) (time.Duration, sender.Result) { return 0, refused })
		w.answer("out", always(400))
		w.answer("sink", always(400))
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		if len(store.letters) != 1 {
			t.Fatalf("%d dead letters, want 1", len(store.letters))
		}
		want := deadletter.Letter{
			Consumer: stored.Key, ConsumerUID: stored.UID, Stream: brokerKey, Event: newEvent("1", ttl("255")),
			Failure: deadletter.Failure{Address: "http://a/", Attempts: 3, Code: 400, Error: "POST http://a/: 400", Response: []byte("no")},
		}
		got := store.letters[0]
		if since := got.Failed.Sub(got.Accepted); since != 2*time.Second || got.Accepted.Sub(w.start) > time.Second {
			t.Errorf("accepted at %s, failed %s after", got.Accepted, since)
		}
		got.Accepted, got.Failed = time.Time{}, time.Time{}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		for c, counts := range map[*eventing.Consumer][2]int64{&stored: {1, 0}, &out: {0, 1}} {
			if n := w.count(c.Key); n.deadLettered.Load() != counts[0] || n.dropped.Load() != counts[1] {
				t.Errorf("%s: %d dead letters, %d dropped, want %v", c.Key.Name, n.deadLettered.Load(), n.dropped.Load(), counts)
			}
		}
		w.expectReceived(map[string]string{"dead": "1", "ok": "1"})
		w.log.expectLeft(t, "b", nil)
	})
}

// TestStoreReply keeps a reply that the reply address does not accept.
func TestStoreReply(t *testing.T) {
	runStored(t, func(w *fixture, store *letterStore) {
		w.set(subscription("a", withReply))
		w.answer("a", replying(newEvent("reply")))
		w.answer("reply", always(400))
		w.accept(channelKey, "1")
		w.after(time.Minute)
		if len(store.letters) != 1 {
			t.Fatalf("%d dead letters, want 1", len(store.letters))
		}
		l := store.letters[0]
		if id, _ := l.Event.Get(event.ID); id != "reply" || !l.Reply || l.Address != "http://reply/" {
			t.Errorf("dead letter %+v of event %s", l.Failure, id)
		}
	})
}

// TestStoreUnavailable ends a delivery only once its dead letter is durable, and makes no other attempt at the subscriber meanwhile, also
// after a restart.
func TestStoreUnavailable(t *testing.T) {
	runStored(t, func(w *fixture, store *letterStore) {
		store.fail = func() error { return eventlog.ErrUnavailable }
		w.set(trigger("a"))
		w.answer("a", always(400))
		w.accept(brokerKey, "1")
		w.after(time.Hour)
		if len(w.log.left("b")) == 0 {
			t.Fatal("the event is no longer in the log, although its dead letter could not be stored")
		}
		w.restart()
		w.after(time.Minute)
		store.fail = nil
		w.after(time.Hour)
		if len(store.letters) != 1 || store.letters[0].Attempts != 1 || store.letters[0].Address != "http://a/" {
			t.Errorf("dead letters %+v, want one", store.letters)
		}
		w.expectTimes("a", 0)
		w.log.expectLeft(t, "b", nil)
	})
}

// TestStoreFull drops and counts an event that the store cannot take, at once if it never can.
func TestStoreFull(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		adds int
	}{
		"full":        {eventlog.ErrFull, maxFull + 1},
		"too large":   {eventlog.ErrTooLarge, 1},
		"unavailable": {eventlog.ErrUnavailable, maxUnavailable + 1},
	} {
		t.Run(name, func(t *testing.T) {
			runStored(t, func(w *fixture, store *letterStore) {
				adds := 0
				store.fail = func() error {
					adds++
					return test.err
				}
				c := trigger("a")
				w.set(c)
				w.answer("a", always(400))
				w.accept(brokerKey, "1")
				w.after(3 * time.Hour)
				if dropped := w.count(c.Key).dropped.Load(); dropped != 1 || adds != test.adds {
					t.Errorf("%d dropped after %d additions, want 1 after %d", dropped, adds, test.adds)
				}
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

// TestStoreHung does not slow the subscriber, nor others.
func TestStoreHung(t *testing.T) {
	runStored(t, func(w *fixture, _ *letterStore) {
		w.set(trigger("a"), trigger("b"))
		w.answer("a", always(400))
		w.answer("dead-a", slow(stuck))
		w.accept(brokerKey, numbers(100)...)
		w.after(2 * time.Second)
		if a, b := len(w.attempts("a")), len(w.attempts("b")); a != 100 || b != 100 {
			t.Errorf("%d and %d attempts, want 100 each", a, b)
		}
	})
}

// TestStoreAndSink sends to the sink that is added while the store is unavailable, with the attributes that sinks get, and stores what a
// removed sink did not accept.
func TestStoreAndSink(t *testing.T) {
	runStored(t, func(w *fixture, store *letterStore) {
		store.fail = func() error { return eventlog.ErrUnavailable }
		c := trigger("a", withDelivery(linear(5, time.Second)))
		w.set(c)
		w.answer("a", func(int) (time.Duration, sender.Result) { return 0, failure(400, false) })
		w.accept(brokerKey, "1")
		w.after(10 * time.Second)
		withDeadLetter(&c)
		w.set(c)
		w.after(time.Hour)
		dead := w.attempts("dead")
		if len(dead) != 1 {
			t.Fatalf("%d dead letters, want 1", len(dead))
		}
		want := newEvent("1", ttl("255"), event.Attribute{Name: event.ErrorDest, Value: "http://a/"}, event.Attribute{Name: event.ErrorCode, Value: "400", Type: event.Integer})
		if diff := cmp.Diff(want, dead[0].event); diff != "" {
			t.Error(diff)
		}

		store.fail = nil
		w.answer("dead", always(503))
		w.accept(brokerKey, "2")
		w.after(100 * time.Millisecond)
		c.DeadLetter = eventing.Endpoint{}
		w.set(c)
		w.after(time.Hour)
		if len(store.letters) != 1 || store.letters[0].Code != 400 || store.letters[0].Accepted.IsZero() {
			t.Fatalf("dead letters %+v, want one", store.letters)
		}
		if diff := cmp.Diff(newEvent("2", ttl("255")), store.letters[0].Event); diff != "" {
			t.Error(diff)
		}
	})
}

// TestTraceStore records that an event went to the dead letter store.
func TestTraceStore(t *testing.T) {
	runTraced(t, func(w *fixture, traces *trace.Store) {
		w.options.DeadLetters = &letterStore{fixture: w}
		w.set(trigger("a"))
		w.answer("a", func(int) (time.Duration, sender.Result) { return 0, failure(400, false) })
		w.accept(brokerKey, "1")
		w.after(time.Second)
		expectRecords(w, traces, "1", `b accepted for [a] of 1, cause ""`,
			"a 1 role 0 outcome 3: http://a/ 400 after 0s, POST: 400",
			"a 1 role 3 outcome 0:  0 after 0s")
	})
}
