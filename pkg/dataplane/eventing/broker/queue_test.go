package broker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/record"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// keepsUp reports whether a consumer gets events from segments that it shares with others.
func (w *fixture) keepsUp(name string) bool {
	w.Helper()
	found, ok := w.consumers.Load(trigger(name).Key)
	if !ok {
		w.Fatalf("the Trigger %s does not exist", name)
	}
	return found.(*consumer).subscriber.KeepsUp()
}

// expectShared fails unless the given number of shared segments of the Broker remains.
func (w *fixture) expectShared(want int) {
	w.Helper()
	if have := w.log.left("b")[delivery.SharedQueue]; have != want {
		w.Errorf("%s: %d shared segments remain, want %d", time.Since(w.start), have, want)
	}
}

// A subscriber that does not answer does not slow others, and does not keep shared segments for long.
func TestHungSubscriber(t *testing.T) {
	for name, n := range map[string]int{"one event": 1, "as many as attempts in flight": delivery.InitialWindow, "more than MaxReady": 2 * delivery.MaxReady, "some kept ready": delivery.MaxReady / 2} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("hung"), trigger("fast"))
				w.answer("hung", slow(stuck))
				w.accept(brokerKey, numbers(n)...)
				w.after(0)
				w.expect("the fast took", w.sorted("fast"), strings.Join(numbers(n), " "))
				w.after(delivery.SharedTimeout + delivery.SharedTimeout/10)
				w.expectShared(0)
				w.accept(brokerKey, "later")
				w.after(0)
				w.expectShared(0)
				if have := len(w.attempts("fast")); have != n+1 {
					t.Errorf("%d attempts at the fast, want %d", have, n+1)
				}
			})
		})
	}
}

// A subscriber that answers more slowly than events arrive does not keep shared segments for long either, and gets all events once.
func TestSlowSubscriber(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("slow"), trigger("fast"))
		w.answer("slow", slow(9*delivery.SharedTimeout/10))
		w.accept(brokerKey, numbers(delivery.MaxReady)...)
		w.after(2*delivery.SharedTimeout + delivery.SharedTimeout/10)
		w.expectShared(0)
		w.after(time.Hour)
		w.expect("the slow took", w.sorted("slow"), strings.Join(numbers(delivery.MaxReady), " "))
		w.log.expectLeft(t, "b", nil)
		if !w.keepsUp("slow") {
			t.Error("the slow subscriber does not get events from shared segments although it has received all")
		}
	})
}

// sorted returns the ids of the events that an endpoint accepted, sorted.
func (w *fixture) sorted(name string) string {
	w.Helper()
	ids := strings.Fields(w.received(name))
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// Events whose attempts take longer than SharedTimeout are delivered once, whether or not the endpoint accepts them at last.
func TestLeasedDelivery(t *testing.T) {
	for name, test := range map[string]struct {
		answer answer
		want   []time.Duration
	}{
		"received": {slow(10 * time.Second), []time.Duration{0}},
		"retried": {func(n int) (time.Duration, sender.Result) {
			return 10 * time.Second, status(map[bool]int{true: 500, false: 202}[n == 1])
		}, []time.Duration{0, 11 * time.Second}},
		"refused": {func(int) (time.Duration, sender.Result) { return 10 * time.Second, status(400) }, []time.Duration{0}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a", withDelivery(linear(1, time.Second))))
				w.answer("a", test.answer)
				w.accept(brokerKey, "1")
				w.after(5 * time.Second)
				w.log.expectLeft(t, "b", map[string]int{"uid-a": 1})
				w.after(time.Hour)
				w.expectTimes("a", test.want...)
				w.log.expectLeft(t, "b", nil)
				if !w.keepsUp("a") {
					t.Error("the subscriber does not get events from shared segments although it has received all")
				}
			})
		})
	}
}

// A delivery that ends while the log rejects its record for the subscriber queue is not repeated.
func TestLeaseNotStored(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"))
		w.answer("a", slow(10*time.Second))
		w.accept(brokerKey, "1")
		w.log.setRefuse(func(string) error { return record.ErrVersion })
		w.after(20 * time.Second)
		w.log.setRefuse(nil)
		w.after(time.Minute)
		w.expectTimes("a", 0)
		w.log.expectLeft(t, "b", nil)
	})
}

// A subscriber that reports overload gets fewer events at a time (eventing Event Acknowledgement and Delivery Retry-6:
// congestion control), from its own queue, until it has received all.
func TestOverload(t *testing.T) {
	for name, code := range map[string]int{"unavailable": 503, "too many requests": 429} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a", withDelivery(linear(1000, 100*time.Millisecond))), trigger("fast"))
				busy := 0
				w.answer("a", func(int) (time.Duration, sender.Result) {
					w.mu.Lock()
					defer w.mu.Unlock()
					if busy >= 2 {
						return 0, status(code)
					}
					busy++
					time.AfterFunc(20*time.Millisecond-1, func() {
						w.mu.Lock()
						defer w.mu.Unlock()
						busy--
					})
					return 20 * time.Millisecond, status(202)
				})
				const n = 500
				w.accept(brokerKey, numbers(n)...)
				w.after(0)
				w.expect("the fast took", w.sorted("fast"), strings.Join(numbers(n), " "))
				w.after(time.Millisecond)
				if w.keepsUp("a") {
					t.Error("the overloaded subscriber gets events from shared segments")
				}
				w.after(10 * time.Minute)
				w.expect("the overloaded took", w.sorted("a"), strings.Join(numbers(n), " "))
				if all := len(w.attempts("a")); all > 3*n {
					t.Errorf("%d attempts for %d events, want at most three times as many", all, n)
				}
				w.log.expectLeft(t, "b", nil)
				if !w.keepsUp("a") {
					t.Error("the subscriber does not get events from shared segments although it has received all")
				}
			})
		})
	}
}

// Events that wait because of the subscriber's Retry-After do not keep shared segments.
func TestRetryAfterSharesNoSegments(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a", withDelivery(linear(10, time.Second))), trigger("fast"))
		hour := time.Hour
		w.answer("a", func(int) (time.Duration, sender.Result) {
			return 100 * time.Millisecond, sender.Result{Code: 503, Err: record.ErrVersion, Retryable: true, RetryAfter: &hour}
		})
		w.accept(brokerKey, numbers(delivery.MaxReady)...)
		w.after(2 * delivery.SharedTimeout)
		w.expectShared(0)
	})
}

// Every event of a consumer whose subscriber or reply is unresolved stays in the log, in order if requested, over
// restarts, and needs neither memory nor shared segments. The subscriber gets all of them once it is resolved.
func TestUnresolved(t *testing.T) {
	subscriber := func(c *eventing.Consumer) { c.Subscriber = eventing.Endpoint{Unresolved: true} }
	reply := func(c *eventing.Consumer) { c.Reply = eventing.Endpoint{Unresolved: true} }
	for name, test := range map[string]struct {
		consumer eventing.Consumer
		lose     func(*eventing.Consumer)
	}{
		"subscriber":          {trigger("a", withDelivery(linear(10, time.Second))), subscriber},
		"subscriber, ordered": {trigger("a", ordered, withDelivery(linear(10, time.Second))), subscriber},
		"reply":               {trigger("a", withDelivery(linear(10, time.Second))), reply},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				c, lost := test.consumer, test.consumer
				test.lose(&lost)
				w.set(c, trigger("fast"))
				w.answer("a", slow(100*time.Millisecond))
				w.accept(brokerKey, numbers(50)...)
				w.set(lost)
				w.accept(brokerKey, "meanwhile-1")
				w.after(time.Minute)
				w.expectShared(0)
				w.expectUnread(c)
				made := len(w.attempts("a"))
				if made > delivery.InitialWindow {
					t.Errorf("%d attempts were made without an address, want at most those in flight", made)
				}
				w.restart()
				w.accept(brokerKey, "meanwhile-2")
				w.after(time.Minute)
				w.crash()
				w.accept(brokerKey, "meanwhile-3")
				w.after(time.Minute)
				w.expectShared(0)
				w.expectUnread(c)
				if have := len(w.attempts("a")); have != made {
					t.Errorf("%d attempts were made without an address after restarts, want none", have-made)
				}
				w.set(c)
				w.accept(brokerKey, "x-last")
				w.after(time.Minute)
				all := append(numbers(50), "meanwhile-1", "meanwhile-2", "meanwhile-3", "x-last")
				if c.Ordered {
					w.expect("took", w.received("a"), strings.Join(all, " "))
				} else {
					w.expect("took", w.sorted("a"), strings.Join(all, " "))
				}
				w.log.expectLeft(t, "b", nil)
				w.after(2 * logqueue.IdleTimeout)
				if !c.Ordered && !w.consumer(c).subscriber.KeepsUp() {
					t.Error("events are still written to the subscriber queue")
				}
			})
		})
	}
}

// A consumer that is unresolved from the start gets every event that was accepted since then (Broker Lifecycle).
func TestUnresolvedFromTheStart(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a")
		unresolved := c
		unresolved.Subscriber = eventing.Endpoint{Unresolved: true}
		w.set(unresolved)
		w.accept(brokerKey, "1", "2")
		w.restart()
		w.accept(brokerKey, "3")
		w.set(c)
		w.accept(brokerKey, "4")
		w.after(time.Minute)
		w.expect("took", w.sorted("a"), "1 2 3 4")
		w.log.expectLeft(t, "b", nil)
	})
}

// While a dead letter sink is unresolved, its events are kept, and the subscriber still gets events.
func TestDeadLetterSinkUnresolved(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDeadLetter)
		unresolved := c
		unresolved.DeadLetter = eventing.Endpoint{Unresolved: true}
		w.answer("a", always(400))
		w.set(unresolved, trigger("fast"))
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		w.expect("tried", w.tried("a"), "1")
		w.restart()
		w.accept(brokerKey, "2")
		w.after(time.Minute)
		w.expect("tried", w.tried("a"), "1 2")
		w.expectShared(0)
		w.set(c)
		w.after(time.Minute)
		w.expectReceived(map[string]string{"dead": "1 2", "fast": "1 2"})
		w.expect("tried", w.tried("a"), "1 2")
		w.log.expectLeft(t, "b", nil)
		if dropped := w.count(c.Key).dropped.Load(); dropped != 0 {
			t.Errorf("%d events were dropped", dropped)
		}
	})
}

// expectUnread fails if events that a paused consumer cannot deliver are in memory.
func (w *fixture) expectUnread(of eventing.Consumer) {
	w.Helper()
	if have := w.consumer(of).subscriber.Status(); have.Read != 0 || have.Ready != 0 || have.Waiting != 0 {
		w.Errorf("%d events from the queue are in memory, %d ready, %d waiting; want none", have.Read, have.Ready, have.Waiting)
	}
}

func (w *fixture) consumer(of eventing.Consumer) *consumer {
	w.Helper()
	found, ok := w.consumers.Load(of.Key)
	if !ok {
		w.Fatalf("%s does not exist", of.Key)
	}
	return found.(*consumer)
}

// Unreadable records are dropped, and the other records of their segments are delivered.
func TestUnreadableRecords(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"))
		shared := record.Header{Targets: nil}
		shared.Targets = append(shared.Targets, "uid-a")
		own := record.Header{ID: 5}
		good := func(h *record.Header, id string) []byte { return newEvent(id).Append(h.Append(nil)) }
		w.log.put("b", delivery.SharedQueue, []byte("bad"), good(&shared, "1"), shared.Append(nil))
		w.log.put("b", delivery.SharedQueue, []byte{})
		w.accept(brokerKey, "2")
		w.log.put("b", "uid-a", []byte("bad"), good(&own, "3"))
		w.log.put("b", "uid-a", []byte("bad"))
		w.restart()
		w.after(0)
		w.expectReceived(map[string]string{"a": "1 2 3"})
		w.log.expectLeft(t, "b", nil)
	})
}

// The consumer of a queue that is empty for some time is closed, and opened again when the queue has records.
func TestIdleQueues(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a", withDelivery(linear(3, time.Second))), trigger("o", ordered))
		for range 3 {
			w.answer("a", failing(1, 500))
			w.must(w.Accept(w.Context(), brokerKey, []*event.Event{newEvent(time.Since(w.start).String())}))
			w.after(10 * time.Second)
			if n := w.log.logConsumers(); n != 3 {
				t.Errorf("%d queues have open consumers, want 3", n)
			}
			w.after(3 * logqueue.IdleTimeout)
			if n := w.log.logConsumers(); n != 0 {
				t.Errorf("%d queues have open consumers after some time, want none", n)
			}
		}
		if a, o := len(w.attempts("a")), len(w.attempts("o")); a != 6 || o != 3 {
			t.Errorf("%d and %d attempts, want 6 and 3", a, o)
		}
		w.log.expectLeft(t, "b", nil)
	})
}
