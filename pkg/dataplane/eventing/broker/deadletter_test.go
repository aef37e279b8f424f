package broker

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// eventing Event Delivery-8: an event that cannot be delivered is sent to the dead letter sink with the reason.
func TestDeadLetter(t *testing.T) {
	integer := func(name, value string) event.Attribute {
		return event.Attribute{Name: name, Value: value, Type: event.Integer}
	}
	dest := event.Attribute{Name: event.ErrorDest, Value: "http://a/"}
	data := func(said string) event.Attribute {
		return event.Attribute{Name: event.ErrorData, Value: base64.StdEncoding.EncodeToString([]byte(said))}
	}
	refused := func(code int, body string, retryable bool) answer {
		r := sender.Result{Code: code, Err: errors.New("POST http://a/: refused"), Body: []byte(body), Retryable: retryable}
		return func(int) (time.Duration, sender.Result) { return 0, r }
	}
	for name, test := range map[string]struct {
		answer   answer
		attempts int
		want     []event.Attribute
	}{
		"not retryable":     {refused(400, "no \x00\xff", false), 1, []event.Attribute{dest, data("no \x00\xff"), integer(event.ErrorCode, "400")}},
		"retries exhausted": {refused(500, "oh", true), 3, []event.Attribute{dest, data("oh"), integer(event.ErrorCode, "500")}},
		"without a body":    {refused(302, "", false), 1, []event.Attribute{dest, integer(event.ErrorCode, "302")}},
		"no answer":         {unreachable, 3, []event.Attribute{dest, data("POST http://x/: connection refused")}},
		"much to say":       {refused(400, strings.Repeat("x", 1024), false), 1, []event.Attribute{dest, data(strings.Repeat("x", 768)), integer(event.ErrorCode, "400")}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a", withDelivery(linear(2, time.Second)), withDeadLetter))
				w.answer("a", test.answer)
				w.accept(brokerKey, "1")
				w.after(time.Minute)
				if have := len(w.attempts("a")); have != test.attempts {
					t.Errorf("%d attempts at the subscriber, want %d", have, test.attempts)
				}
				dead := w.attempts("dead")
				if len(dead) != 1 {
					t.Fatalf("%d dead letters, want 1", len(dead))
				}
				want := newEvent("1", append([]event.Attribute{ttl("255")}, test.want...)...)
				if diff := cmp.Diff(want, dead[0].event); diff != "" {
					t.Error(diff)
				}
				for _, a := range dead[0].event.Attributes {
					if a.Name == event.ErrorData && len(a.Value) > 1024 {
						t.Errorf("%s has %d characters, want at most %d", a.Name, len(a.Value), 1024)
					}
				}
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

// eventing Event Delivery-10: the dead letter sink gets retries as the subscriber does.
func TestDeadLetterSinkIsRetried(t *testing.T) {
	for name, test := range map[string]struct {
		answer                answer
		want                  []time.Duration
		deadLettered, dropped int64
	}{
		"success at last":          {failing(2, 500), []time.Duration{0, time.Second, 2 * time.Second}, 1, 0},
		"retries exhausted":        {always(500), []time.Duration{0, time.Second, 2 * time.Second}, 0, 1},
		"not retryable":            {always(400), []time.Duration{0}, 0, 1},
		"unreachable for too long": {unreachable, []time.Duration{0, time.Second, 2 * time.Second}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				c := trigger("a", withDelivery(linear(2, time.Second)), withDeadLetter)
				w.set(c)
				w.answer("a", always(400))
				w.answer("dead", test.answer)
				w.accept(brokerKey, "1")
				w.after(time.Minute)
				w.expectTimes("a", 0)
				w.expectTimes("dead", test.want...)
				n := w.count(c.Key)
				if dead, dropped := n.deadLettered.Load(), n.dropped.Load(); dead != test.deadLettered || dropped != test.dropped {
					t.Errorf("%d dead letters and %d dropped, want %d and %d", dead, dropped, test.deadLettered, test.dropped)
				}
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

// If the dead letter sink is removed meanwhile, its deliveries are dropped and counted.
func TestDeadLetterSinkRemoved(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDelivery(linear(5, time.Minute)), withDeadLetter)
		w.set(c)
		w.answer("a", always(400))
		w.answer("dead", always(500))
		w.accept(brokerKey, "1")
		w.after(time.Second)
		c.DeadLetter = eventing.Endpoint{}
		w.set(c)
		w.after(time.Hour)
		w.expectTimes("dead", 0)
		if dropped := w.count(c.Key).dropped.Load(); dropped != 1 {
			t.Errorf("%d events were dropped, want 1", dropped)
		}
		w.log.expectLeft(t, "b", nil)
	})
}

// A failed delivery ends only once its dead letter was received, or is durable.
func TestDeadLetterIsSafeFirst(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDeadLetter)
		w.set(c)
		w.answer("a", always(400))
		w.answer("dead", slow(10*time.Minute))
		w.log.setRefuse(func(queue string) error {
			if queue == string(c.UID)+deadLetterSuffix {
				return errors.New("full")
			}
			return nil
		})
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		if left := w.log.left("b"); len(left) == 0 {
			t.Fatal("the event is no longer in the log, although its dead letter could not be stored")
		}
		w.expectTimes("a", 0)
		w.after(10 * time.Minute)
		w.expectReceived(map[string]string{"dead": "1"})
		w.log.expectLeft(t, "b", nil)
	})
}

// A slow dead letter sink does not slow the subscriber, nor others.
func TestHungDeadLetterSink(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a", withDeadLetter), trigger("b"))
		w.answer("a", always(400))
		w.answer("dead", slow(stuck))
		w.accept(brokerKey, numbers(100)...)
		w.after(delivery.SharedTimeout + time.Second)
		if a, b := len(w.attempts("a")), len(w.attempts("b")); a != 100 || b != 100 {
			t.Errorf("%d and %d attempts, want 100 each", a, b)
		}
		if shared := w.log.left("b")[delivery.SharedQueue]; shared != 0 {
			t.Errorf("%d shared segments remain, want none", shared)
		}
	})
}

// A dead letter does not contain the password of the subscriber's URL.
func TestDeadLetterKeepsPasswords(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a", withDeadLetter, func(c *eventing.Consumer) { c.Subscriber.URL = "http://user:secret@host/path" }))
		w.mu.Lock()
		w.answers["http://user:secret@host/path"] = always(400)
		w.mu.Unlock()
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		dead := w.attempts("dead")
		if len(dead) != 1 {
			t.Fatalf("%d dead letters, want 1", len(dead))
		}
		if dest, _ := dead[0].event.Get(event.ErrorDest); dest != "http://host/path" {
			t.Errorf("%s is %q, want http://host/path", event.ErrorDest, dest)
		}
	})
}
