package broker

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// A removed consumer receives no more events: attempts in flight are canceled, waiting deliveries are deleted, and shared segments are released.
func TestRemoveConsumer(t *testing.T) {
	for name, test := range map[string]struct {
		consumer eventing.Consumer
		answer   answer
		wait     time.Duration
	}{
		"hung, at once":         {trigger("a"), slow(stuck), 0},
		"hung, later":           {trigger("a"), slow(stuck), 10 * time.Second},
		"slow":                  {trigger("a"), slow(time.Second / 2), 700 * time.Millisecond},
		"retried":               {trigger("a", withDelivery(linear(10, time.Second))), always(500), 3500 * time.Millisecond},
		"overloaded":            {trigger("a", withDelivery(linear(10, time.Second))), always(429), 3500 * time.Millisecond},
		"ordered":               {trigger("a", ordered, withDelivery(linear(10, time.Second))), always(500), 3500 * time.Millisecond},
		"ordered, hung":         {trigger("a", ordered), slow(stuck), time.Second},
		"with dead letters":     {trigger("a", withDeadLetter), always(400), time.Second},
		"with its sink waiting": {trigger("a", withDeadLetter, withDelivery(linear(5, time.Hour))), always(400), time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(test.consumer, trigger("fast"))
				w.answer("a", test.answer)
				w.answer("dead", always(500))
				w.accept(brokerKey, numbers(300)...)
				w.after(test.wait)
				began := time.Now()
				w.must(w.RemoveConsumer(w.Context(), test.consumer.Key))
				if took := time.Since(began); took != 0 {
					t.Errorf("removing took %v, want no wait", took)
				}
				seen := len(w.attempts("a")) + len(w.attempts("dead"))
				w.accept(brokerKey, "later")
				w.after(100 * time.Hour)
				if have := len(w.attempts("a")) + len(w.attempts("dead")); have != seen {
					t.Errorf("%d attempts were made after it was removed, want none", have-seen)
				}
				w.expect("the other took", w.sorted("fast"), strings.Join(append(numbers(300), "later"), " "))
				w.log.expectLeft(t, "b", nil)
				w.must(w.RemoveConsumer(w.Context(), test.consumer.Key))
			})
		})
	}
}

// A consumer whose events cannot be deleted now is removed by the next call, does not delay other consumers meanwhile, and may be added again.
func TestRemoveConsumerFails(t *testing.T) {
	for name, back := range map[string]bool{"removed": false, "back": true} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				c := trigger("a", withDelivery(linear(10, time.Second)))
				w.set(c, trigger("fast"))
				w.answer("a", always(500))
				w.accept(brokerKey, "1")
				w.after(time.Second / 2)
				unavailable := errors.New("unavailable")
				w.log.setRefuse(func(queue string) error {
					if queue == string(c.UID) {
						return unavailable
					}
					return nil
				})
				if err := w.RemoveConsumer(w.Context(), c.Key); !errors.Is(err, unavailable) {
					t.Fatalf("removing: %v, want an error that the log is unavailable", err)
				}
				w.answer("a", nil)
				w.accept(brokerKey, "2")
				w.after(time.Minute)
				w.expectShared(0)
				w.log.setRefuse(nil)
				if back {
					w.set(c)
					w.accept(brokerKey, "3")
					w.after(time.Minute)
					w.expectReceived(map[string]string{"a": "3", "fast": "1 2 3"})
				} else {
					w.must(w.RemoveConsumer(w.Context(), c.Key))
				}
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

// An event that is being appended for a consumer during its removal leaves no record.
func TestRemoveConsumerWhileAccepting(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("o", ordered)
		w.set(c)
		w.log.setLatency(time.Second)
		var accepting sync.WaitGroup
		defer accepting.Wait()
		accepting.Go(func() { w.accept(brokerKey, "1") })
		w.after(time.Second / 2)
		w.must(w.RemoveConsumer(w.Context(), c.Key))
		accepting.Wait()
		w.accept(brokerKey, "2")
		w.log.expectLeft(t, "b", nil)
	})
}

// A shared segment in the log for a consumer that is being removed is released.
func TestRemoveConsumerWhileItIsOffered(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"), trigger("fast"))
		found, _ := w.consumers.Load(trigger("a").Key)
		found.(*consumer).remove()
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		w.expectReceived(map[string]string{"a": "", "fast": "1"})
		w.expectShared(0)
	})
}

// A stream is removed with its events and consumers.
func TestRemoveStream(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("hung"), trigger("retried", withDelivery(linear(10, time.Second))), trigger("o", ordered), subscription("s"))
		w.answer("hung", slow(stuck))
		w.answer("o", slow(stuck))
		w.answer("retried", always(500))
		w.accept(brokerKey, numbers(100)...)
		w.after(1500 * time.Millisecond)
		w.must(w.RemoveStream(w.Context(), brokerKey))
		seen := len(w.calls)
		if w.Exists(brokerKey) {
			t.Error("the Broker exists after it was removed")
		}
		w.log.expectLeft(t, "b", nil)
		w.after(time.Hour)
		if have := len(w.calls); have != seen {
			t.Errorf("%d attempts were made after it was removed, want none", have-seen)
		}
		w.accept(channelKey, "1")
		w.after(0)
		w.expectReceived(map[string]string{"s": "1"})
		w.must(w.RemoveStream(w.Context(), brokerKey))
		w.must(w.RemoveConsumer(w.Context(), trigger("hung").Key))
		w.must(w.SetStream(w.Context(), eventing.Stream{Key: brokerKey, UID: "b"}))
		w.set(trigger("hung"))
		w.answer("hung", nil)
		w.accept(brokerKey, "new")
		w.after(0)
		w.expectReceived(map[string]string{"hung": "new"})
	})
}

// The next attempt is made at the address, and with the options, of that time.
func TestAddressMoves(t *testing.T) {
	for order, how := range map[string]func(*eventing.Consumer){"unordered": func(*eventing.Consumer) {}, "ordered": ordered} {
		t.Run(order, func(t *testing.T) {
			run(t, func(w *fixture) {
				c := trigger("a", withDelivery(linear(3, time.Minute)), how)
				w.set(c)
				w.answer("a", unreachable)
				w.accept(brokerKey, numbers(20)...)
				w.after(time.Second)
				seen := len(w.attempts("a"))
				c.Subscriber.URL = "http://moved/"
				w.set(c)
				w.accept(brokerKey, "later")
				w.after(time.Hour)
				w.expect("the new address received", w.sorted("moved"), strings.Join(append(numbers(20), "later"), " "))
				if have := len(w.attempts("a")); have != seen {
					t.Errorf("%d attempts were made at the old address after it moved, want none", have-seen)
				}
				if first := w.times("moved"); order == "ordered" && first[0] != time.Minute {
					t.Errorf("the first attempt at the new address was made after %v, want a minute", first[0])
				}
			})
		})
	}
}

// A consumer that is removed while the reply of its subscriber, or a dead letter, is being stored leaves no records.
func TestRemoveConsumerWhileStoring(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDeadLetter)
		w.set(c)
		w.answer("a", always(400))
		w.answer("dead", slow(stuck))
		w.log.setRefuse(func(queue string) error {
			if queue != delivery.SharedQueue {
				return errors.New("full")
			}
			return nil
		})
		w.accept(brokerKey, numbers(20)...)
		w.after(3 * time.Second)
		w.log.setRefuse(nil)
		w.must(w.RemoveConsumer(w.Context(), c.Key))
		w.after(time.Minute)
		w.expect("dead letters", w.received("dead"), "")
		w.log.expectLeft(t, "b", nil)
	})
}

// Dead letters that are too large for the log are sent at once, or dropped, and do not delay others.
func TestDeadLetterTooLarge(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDeadLetter)
		w.set(c)
		w.answer("a", always(400))
		w.log.setRefuse(func(queue string) error {
			if strings.HasSuffix(queue, deadLetterSuffix) {
				return eventlog.ErrTooLarge
			}
			return nil
		})
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		w.expect("dead letters", w.received("dead"), "1")
		w.answer("dead", always(500))
		w.accept(brokerKey, "2")
		w.after(time.Minute)
		w.log.expectLeft(t, "b", nil)
		if dropped := w.count(c.Key).dropped.Load(); dropped != 1 {
			t.Errorf("%d events were dropped, want 1", dropped)
		}
	})
}
