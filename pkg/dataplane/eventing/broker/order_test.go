package broker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// expectOrder fails unless an endpoint accepted exactly the events with some ids, in that order, and no attempt
// began before the previous one ended, or before the deliveries ahead of it ended.
func (w *fixture) expectOrder(name string, ids []string) {
	w.Helper()
	w.expect(name+" took", w.received(name), strings.Join(ids, " "))
	calls := w.attempts(name)
	for i := 1; i < len(calls); i++ {
		if calls[i].at < calls[i-1].end {
			w.Errorf("the attempt at %s began before the one at %s ended", calls[i].id, calls[i-1].id)
		}
		if calls[i].id < calls[i-1].id {
			w.Errorf("there was an attempt at %s after one at %s", calls[i].id, calls[i-1].id)
		}
	}
}

// An ordered consumer gets events one at a time in the order of their acceptance, also when some are retried.
func TestOrdered(t *testing.T) {
	unsteady := func(n int) (time.Duration, sender.Result) {
		return time.Duration(n) * 10 * time.Millisecond, status(map[bool]int{true: 500, false: 202}[n < 3])
	}
	exponential := eventing.DefaultDelivery()
	for name, test := range map[string]struct {
		delivery eventing.Delivery
		answer   answer
	}{
		"fast":                       {exponential, nil},
		"slow":                       {exponential, slow(3 * time.Second)},
		"each retried":               {exponential, unsteady},
		"each retried at once":       {linear(5, 0), unsteady},
		"each overloaded":            {linear(5, time.Second), failing(2, 503)},
		"each retried after an hour": {linear(5, time.Hour), unsteady},
		"unreachable at first":       {exponential, func(n int) (time.Duration, sender.Result) { return unreachableUntil(n, 5) }},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("o", ordered, withDelivery(test.delivery)), trigger("fast"))
				w.answer("o", test.answer)
				ids := numbers(40)
				w.accept(brokerKey, ids[:20]...)
				w.after(100 * time.Millisecond)
				var batch []*event.Event
				for _, id := range ids[20:] {
					batch = append(batch, newEvent(id))
				}
				w.must(w.Accept(w.Context(), brokerKey, batch))
				w.after(0)
				if have := len(w.attempts("fast")); have != len(ids) {
					t.Errorf("%d attempts at the other subscriber, want %d", have, len(ids))
				}
				w.after(1000 * time.Hour)
				w.expectOrder("o", ids)
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

func unreachableUntil(n, last int) (time.Duration, sender.Result) {
	if n < last {
		return unreachable(n)
	}
	return 0, status(202)
}

// An event that cannot be delivered does not block later ones.
func TestOrderedGivesUp(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("o", ordered, withDelivery(linear(2, time.Second)), withDeadLetter))
		w.answer("o", always(500))
		w.accept(brokerKey, "1", "2")
		w.after(time.Minute)
		w.expect("attempts", w.tried("o"), "1 1 1 2 2 2")
		w.expectTimes("o", 0, time.Second, 2*time.Second, 2*time.Second, 3*time.Second, 4*time.Second)
		w.expectReceived(map[string]string{"dead": "1 2"})
		w.log.expectLeft(t, "b", nil)
	})
}

// Retries of an ordered consumer are counted over restarts.
func TestOrderedSurvivesRestarts(t *testing.T) {
	for name, restart := range map[string]func(*fixture){"restart": (*fixture).restart, "crash": (*fixture).crash} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("o", ordered, withDelivery(linear(3, time.Minute))))
				w.answer("o", failing(2, 500))
				ids := numbers(5)
				w.accept(brokerKey, ids...)
				w.after(10 * time.Second)
				restart(w)
				w.after(time.Hour)
				w.expectOrder("o", ids)
				w.expect("attempts at the first", strings.Join(w.attemptsAt("o", ids[0]), " "), "0s 1m0s 2m0s")
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

// attemptsAt returns the times of the attempts at an event.
func (w *fixture) attemptsAt(name, id string) (times []string) {
	for _, c := range w.attempts(name) {
		if c.id == id {
			times = append(times, c.at.String())
		}
	}
	return times
}

// A consumer that becomes ordered gets all events from before, and later ones in order.
func TestBecomesOrdered(t *testing.T) {
	for name, test := range map[string]struct {
		delivery eventing.Delivery
		before   answer
	}{
		"while idle":              {linear(5, time.Second), nil},
		"while hung":              {linear(5, time.Second), func(n int) (time.Duration, sender.Result) { return 30 * time.Second, status(503) }},
		"while it is retried":     {linear(5, 10*time.Second), always(500)},
		"while it is unreachable": {eventing.DefaultDelivery(), unreachable},
		"while it is slow":        {linear(5, time.Second), slow(700 * time.Millisecond)},
		"while it is very slow":   {linear(5, time.Second), slow(7 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				c := trigger("o", withDelivery(test.delivery))
				w.set(c, trigger("fast"))
				w.answer("o", test.before)
				early, late := numbers(60)[:30], numbers(60)[30:]
				w.accept(brokerKey, early...)
				w.after(5 * time.Second)
				ordered(&c)
				w.set(c)
				w.accept(brokerKey, late...)
				w.after(time.Second)
				w.answer("o", func(n int) (time.Duration, sender.Result) {
					if n == 1 {
						return 100 * time.Millisecond, status(500)
					}
					return 0, status(202)
				})
				w.after(time.Hour)
				w.expectShared(0)
				received := strings.Fields(w.received("o"))
				ofLate := slices.DeleteFunc(slices.Clone(received), func(id string) bool { return id < late[0] })
				w.expect("of the later events it received", strings.Join(slices.Compact(ofLate), " "), strings.Join(late, " "))
				slices.Sort(received)
				w.expect("it took", strings.Join(slices.Compact(received), " "), strings.Join(numbers(60), " "))
				w.log.expectLeft(t, "b", nil)
			})
		})
	}
}

// A consumer that is no longer ordered does not wait for retries, and gets all events.
func TestBecomesUnordered(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("o", withDelivery(linear(5, 10*time.Hour)), ordered)
		w.set(c)
		w.answer("o", failing(1, 500))
		w.accept(brokerKey, numbers(10)...)
		w.after(time.Minute)
		w.expect("attempts while ordered", w.tried("o"), "0000")
		c.Ordered = false
		w.set(c)
		w.accept(brokerKey, "later")
		w.after(20 * time.Hour)
		w.expect("took", w.sorted("o"), strings.Join(append(numbers(10), "later"), " "))
		w.log.expectLeft(t, "b", nil)
		w.accept(brokerKey, "last")
		w.after(11 * time.Hour)
		if !w.keepsUp("o") {
			t.Error("the consumer does not get events from shared segments although it has received all")
		}
	})
}
