package broker

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/record"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// The number of attempts of a delivery and its due time are kept over restarts.
func TestRetriesSurviveRestarts(t *testing.T) {
	for name, restart := range map[string]func(*fixture){"restart": (*fixture).restart, "crash": (*fixture).crash} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a", withDelivery(linear(3, time.Minute)), withDeadLetter))
				w.answer("a", always(500))
				w.answer("dead", failing(2, 500))
				w.accept(brokerKey, "1")
				for range 10 {
					w.after(25 * time.Second)
					restart(w)
				}
				w.after(time.Hour)
				w.expectTimes("a", 0, time.Minute, 2*time.Minute, 3*time.Minute)
				w.expectTimes("dead", 3*time.Minute, 4*time.Minute, 5*time.Minute)
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

// An event whose attempt takes more than a second, and succeeds while the process ends or the owner changes, is sent once: its copy is
// acknowledged, whether it is being appended at that time, or was not read because the address was unknown.
func TestCopiesAreReadAtTheEnd(t *testing.T) {
	move := func(w *fixture) {
		c := w.stream(brokerKey).consumer("uid-a").config.Load()
		w.ReleaseStream(brokerKey)
		_, err := w.AcquireStream(w.Context(), eventing.Stream{Key: brokerKey, UID: types.UID(brokerKey.Name)}, []eventing.Consumer{*c})
		w.must(err)
	}
	for name, test := range map[string]struct {
		end    func(*fixture)
		paused bool
	}{
		"restart":          {(*fixture).restart, false},
		"restart, unknown": {(*fixture).restart, true},
		"move":             {move, false},
		"move, unknown":    {move, true},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a"))
				w.answer("a", slow(delivery.SharedTimeout+500*time.Millisecond))
				w.accept(brokerKey, "1")
				w.after(delivery.SharedTimeout / 2)
				if test.paused {
					w.set(trigger("a", func(c *eventing.Consumer) { c.Subscriber = eventing.Endpoint{Unresolved: true} }))
				}
				w.log.setLatency(200 * time.Millisecond)
				w.after(delivery.SharedTimeout/2 + 100*time.Millisecond)
				test.end(w)
				w.log.setLatency(0)
				w.log.expectLeft(t, "b", nil)
				w.set(trigger("a"))
				w.after(time.Minute)
				w.expect("attempts", w.tried("a"), "1")
			})
		})
	}
}

// The wait for a copy behind a long queue is short. The next process sends it.
func TestCopiesAreWaitedForShortly(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"))
		w.answer("a", slow(delivery.SharedTimeout+500*time.Millisecond))
		w.accept(brokerKey, "1")
		w.after(delivery.SharedTimeout / 2)
		for range 4096 {
			h := record.Header{ID: record.NewID(), Accepted: time.Now(), Due: time.Now().Add(time.Hour)}
			w.log.put("b", "uid-a", newEvent("behind").Append(h.Append(nil)))
		}
		w.must(w.Refresh(w.Context(), brokerKey))
		w.after(2 * delivery.SharedTimeout)
		began := time.Now()
		w.Stop(time.Minute)
		if took := time.Since(began); took != time.Second {
			t.Errorf("stopping took %v, want 1s", took)
		}
		w.expect("attempts", w.tried("a"), "1")
	})
}

// Finished deliveries of a segment are not repeated after a restart, although the other ones were canceled: neither deliveries of one
// event to several consumers, nor of events that were written together (eventing DeliverySpec).
func TestPartsSurviveRestart(t *testing.T) {
	for name, direct := range map[string]bool{"shared segment": true, "own queue": false} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a", withDelivery(linear(3, time.Minute)), withDeadLetter), trigger("b"))
				w.answer("a", always(500))
				if !direct {
					w.accept(brokerKey, "first")
					w.after(time.Second)
				}
				var calls atomic.Int64
				w.answer("a", func(int) (time.Duration, sender.Result) {
					return time.Duration(calls.Add(1)%2) * stuck, status(500)
				})
				ids := numbers(delivery.InitialWindow)
				events := make([]*event.Event, 0, len(ids))
				for _, id := range ids {
					events = append(events, newEvent(id))
				}
				w.must(w.Accept(w.Context(), brokerKey, events))
				w.after(delivery.SharedTimeout / 2)
				w.answer("a", always(500))
				w.restart()
				w.after(time.Hour)
				// Half of the first attempts were canceled, which does not count.
				first := len(ids) / 2
				if !direct {
					first += 4
				}
				if made, want := len(w.attempts("a")), 4*len(ids)+first; made != want {
					t.Errorf("%d attempts were made, want %d", made, want)
				}
				if !direct {
					ids = append(ids, "first")
				}
				for _, name := range []string{"b", "dead"} {
					w.expect(name+" took", w.sorted(name), strings.Join(ids, " "))
				}
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

// Accepted events are delivered after a crash, also if they were in flight, to each consumer that has not received them.
func TestCrash(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("hung"), trigger("slow"), trigger("fast"), trigger("o", ordered))
		w.answer("hung", slow(stuck))
		w.answer("slow", slow(300*time.Millisecond))
		w.answer("o", slow(300*time.Millisecond))
		ids := numbers(100)
		w.accept(brokerKey, ids...)
		w.after(delivery.SharedTimeout + delivery.SharedTimeout/2)
		// Only attempts after the crash use it.
		w.answer("hung", nil)
		w.crash()
		w.after(time.Hour)
		for _, name := range []string{"hung", "slow", "fast", "o"} {
			received := strings.Fields(w.sorted(name))
			w.expect(name+" took", strings.Join(slices.Compact(slices.Clone(received)), " "), strings.Join(ids, " "))
			if twice := len(received) - len(ids); twice > delivery.InitialWindow && name != "fast" {
				t.Errorf("%s received %d events twice, want at most the ones in flight", name, twice)
			}
		}
		w.log.expectLeft(t, "b", nil)
	})
}

// Events accepted before Start are delivered from then on.
func TestAcceptedBeforeStart(t *testing.T) {
	run(t, func(w *fixture) {
		w.Stop(time.Second)
		w.boot()
		w.set(trigger("a"), trigger("o", ordered))
		w.accept(brokerKey, "1", "2")
		w.after(time.Minute)
		w.expectReceived(map[string]string{"a": "", "o": ""})
		w.begin()
		w.after(0)
		w.expectReceived(map[string]string{"a": "1 2", "o": "1 2"})
		w.log.expectLeft(t, "b", nil)
	})
}

// Start deletes the events of deleted objects, and keeps the events of consumers that are set later.
func TestStartPrunes(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("kept", withDelivery(linear(3, time.Minute))), trigger("gone", withDelivery(linear(3, time.Minute)), withDeadLetter), trigger("late"))
		w.answer("kept", always(500))
		w.answer("gone", always(500))
		w.answer("late", slow(stuck))
		w.accept(brokerKey, "1")
		w.after(10 * time.Second)
		w.log.put("unknown", delivery.SharedQueue, []byte("any"))
		w.log.put("other", delivery.SharedQueue, []byte("any"))
		w.log.put("b", "uid-gone"+deadLetterSuffix, []byte("any"))
		w.log.expectLeft(t, "b", map[string]int{delivery.RetryQueue: 1, "uid-gone" + deadLetterSuffix: 1, "uid-late": 1})
		w.Stop(time.Second)

		w.absent["uid-gone"], w.absent["unknown"] = true, true
		w.boot()
		w.set(trigger("kept", withDelivery(linear(3, time.Minute))))
		w.begin()
		w.after(0)
		w.log.expectLeft(t, "b", map[string]int{delivery.RetryQueue: 1, "uid-late": 1})
		w.log.expectLeft(t, "other", map[string]int{delivery.SharedQueue: 1})
		w.log.expectLeft(t, "unknown", nil)
		w.answer("kept", nil)
		w.answer("late", nil)
		w.set(trigger("late"))
		w.after(time.Minute)
		w.expectReceived(map[string]string{"kept": "1", "late": "1", "gone": ""})
		w.log.expectLeft(t, "b", nil)
	})
}

// A consumer that the API has, but that is set only later, gets its events of shared segments; a deleted one does not delay them.
func TestConsumerSetLater(t *testing.T) {
	run(t, func(w *fixture) {
		w.Stop(time.Second)
		w.boot()
		w.set(trigger("late"), trigger("gone"), trigger("a"))
		w.accept(brokerKey, "1")
		w.Stop(time.Second)
		w.boot()
		w.mu.Lock()
		w.absent["uid-gone"] = true
		w.mu.Unlock()
		w.set(trigger("a"))
		w.begin()
		w.after(time.Minute)
		w.expectReceived(map[string]string{"a": "1", "late": "", "gone": ""})
		w.set(trigger("late"))
		w.after(unassignedTimeout)
		w.expectReceived(map[string]string{"a": "1", "late": "1", "gone": ""})
		w.log.expectLeft(t, "b", nil)
	})
}

// A consumer that is set again while the process ends, because its deliveries failed just then, keeps its events: those for
// the subscriber, and dead letters.
func TestConsumerSetAfterStop(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDeadLetter, withDelivery(linear(10, time.Minute)))
		w.set(c)
		w.answer("a", failing(1, 500))
		w.answer("dead", failing(1, 500))
		w.accept(brokerKey, "1")
		w.after(time.Second)
		w.answer("a", always(400))
		w.accept(brokerKey, "2")
		w.after(time.Second)
		w.replace(func() {
			w.Stop(time.Second)
			if err := w.SetConsumer(w.Context(), c); !errors.Is(err, errStopped) {
				t.Errorf("setting a consumer after Stop: %v", err)
			}
			w.session.close()
		})
		w.answer("a", nil)
		w.after(time.Hour)
		w.expectReceived(map[string]string{"a": "1", "dead": "2"})
		w.log.expectLeft(t, "b", nil)
	})
}

// Events of a consumer that exists but was not set move to its queue, where they neither delay other consumers nor use memory, and
// survive further restarts, also if the log rejects them for some time.
func TestConsumerSetMuchLater(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("late"), trigger("a"))
		w.Stop(time.Second)
		w.boot()
		w.set(trigger("late"), trigger("a"))
		w.accept(brokerKey, numbers(300)...)
		w.Stop(time.Second)
		w.boot()
		w.set(trigger("a"))
		w.log.setRefuse(func(queue string) error {
			if queue == "uid-late" {
				return record.ErrVersion
			}
			return nil
		})
		w.begin()
		w.after(10 * time.Second)
		w.log.setRefuse(nil)
		w.after(2 * unassignedTimeout)
		w.expectShared(0)
		w.expect("a took", w.sorted("a"), strings.Join(numbers(300), " "))
		w.restart()
		w.accept(brokerKey, "later")
		w.after(time.Minute)
		w.expectShared(0)
		w.set(trigger("late"))
		w.after(time.Minute)
		w.expect("late took", w.sorted("late"), strings.Join(numbers(300), " "))
		w.expect("a took", w.sorted("a"), strings.Join(append(numbers(300), "later"), " "))
		w.log.expectLeft(t, "b", nil)
	})
}

// Stop waits for deliveries in flight, and begins no others.
func TestStopDrains(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("slow"), trigger("o", ordered))
		w.answer("slow", slow(10*time.Second))
		w.answer("o", slow(10*time.Second))
		w.accept(brokerKey, numbers(20)...)
		w.after(time.Second / 2)
		began := time.Now()
		w.Stop(time.Minute)
		if took := time.Since(began); took != 9500*time.Millisecond {
			t.Errorf("stopping took %v, want 9.5s", took)
		}
		if slow, o := len(w.attempts("slow")), len(w.attempts("o")); slow != delivery.InitialWindow || o != 1 || len(strings.Fields(w.received("slow"))) != delivery.InitialWindow || w.received("o") != "0000" {
			t.Errorf("%d and %d attempts, of which succeeded %q and %q; want %d and 1, and all to succeed", slow, o, w.received("slow"), w.received("o"), delivery.InitialWindow)
		}
		w.replace(func() {})
		w.after(time.Hour)
		w.expect("the slow took", w.sorted("slow"), strings.Join(numbers(20), " "))
		w.expectOrder("o", numbers(20))
		w.log.expectLeft(t, "b", nil)
	})
}

// Stop cancels attempts that exceed its timeout; the next broker repeats these deliveries.
func TestStopBreaksOff(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("hung", withDelivery(linear(3, time.Second))), trigger("o", ordered), trigger("full", withDeadLetter))
		w.answer("hung", slow(stuck))
		w.answer("o", slow(stuck))
		w.answer("full", always(400))
		w.answer("dead", slow(stuck))
		w.log.setRefuse(func(queue string) error {
			if strings.HasSuffix(queue, deadLetterSuffix) {
				return record.ErrVersion
			}
			return nil
		})
		w.accept(brokerKey, "1")
		w.after(5 * time.Second)
		began := time.Now()
		w.Stop(30 * time.Second)
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("stopping took %v, want 30s", took)
		}
		w.log.setRefuse(nil)
		for _, name := range []string{"hung", "o", "full"} {
			w.answer(name, nil)
		}
		w.replace(func() {})
		w.after(time.Hour)
		// The segment that the first event shares with the last one is redelivered completely.
		w.expectReceived(map[string]string{"hung": "1 1", "o": "1", "full": "1", "dead": ""})
		w.log.expectLeft(t, "b", nil)
	})
}

// A subscriber that was unreachable and answers again gets all waiting events at once, unless an endpoint requested a delay by
// Retry-After (eventing DeliverySpec).
func TestEndpointReturns(t *testing.T) {
	long := eventing.DefaultDelivery()
	for name, test := range map[string]struct {
		delivery eventing.Delivery
		want     time.Duration
	}{
		"nothing said":                  {long, 5 * time.Minute},
		"overloaded after its recovery": {long, 5 * time.Minute},
		"explicit":                      {linear(10, time.Hour), time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a", withDelivery(test.delivery)))
				w.answer("a", unreachable)
				w.accept(brokerKey, numbers(50)...)
				w.after(5 * time.Minute)
				seen := len(w.attempts("a"))
				w.answer("a", func(n int) (time.Duration, sender.Result) {
					if name == "overloaded after its recovery" && time.Since(w.start) < 5*time.Minute+2*time.Second {
						return 0, status(503)
					}
					return time.Millisecond, status(202)
				})
				w.accept(brokerKey, "new")
				w.after(10*time.Second + test.want - 5*time.Minute)
				if have := len(strings.Fields(w.received("a"))); have != 51 {
					t.Errorf("after %v and %d attempts while it was unreachable, the subscriber received %d events, want 51", time.Since(w.start), seen, have)
				}
				if test.want == time.Hour {
					for _, c := range w.attempts("a")[seen:] {
						if c.id != "new" && c.at < time.Hour {
							t.Errorf("the attempt at %s is made after %v, want an hour", c.id, c.at)
						}
					}
				}
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

// A subscriber that is down for many events gets all once it is up, as do others meanwhile.
func TestDownForManyEvents(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a", withDelivery(eventing.DefaultDelivery())), trigger("fast"))
		w.answer("a", unreachable)
		ids := numbers(1000)
		w.accept(brokerKey, ids...)
		w.after(10 * time.Minute)
		w.expect("the fast took", w.sorted("fast"), strings.Join(ids, " "))
		w.answer("a", slow(time.Millisecond))
		w.after(3 * time.Minute)
		w.expect("took", w.sorted("a"), strings.Join(ids, " "))
		w.log.expectLeft(t, "b", nil)
	})
}

// Streams and consumers are distinguished by UID from earlier ones of the same name.
func TestSameNameOtherUID(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDelivery(linear(3, time.Minute)))
		w.set(c)
		w.answer("a", failing(1, 500))
		w.accept(brokerKey, "1")
		w.after(time.Second)
		w.must(w.SetStream(w.Context(), eventing.Stream{Key: brokerKey, UID: "new"}))
		w.log.expectLeft(t, "b", nil)
		if err := w.SetConsumer(w.Context(), c); err == nil {
			t.Error("an event of the deleted stream was received")
		}
		c.StreamUID = "new"
		w.set(c)
		w.accept(brokerKey, "2")
		w.after(time.Second)
		c.UID = types.UID("another")
		w.set(c)
		w.log.expectLeft(t, "new", nil)
		w.accept(brokerKey, "3")
		w.after(time.Hour)
		w.expect("attempts", w.tried("a"), "1 2 3 3")
		w.log.expectLeft(t, "new", nil)
	})
}
