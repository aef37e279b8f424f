package broker

import (
	"errors"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

func ofType(kind string) func(*eventing.Consumer) {
	return func(c *eventing.Consumer) { c.Attributes = map[string]string{"type": kind} }
}

func reply(id, kind string, attributes ...event.Attribute) *event.Event {
	e := newEvent(id, attributes...)
	e.Attributes[2].Value = kind
	return e
}

// eventing Content Based Routing-9 and -10: replies re-enter the Broker, and are evaluated against all its
// Triggers.
func TestRepliesThroughTwoHops(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("first", ofType("t")), trigger("second", ofType("u")), trigger("third", ofType("v")), trigger("all"))
		w.answer("first", replying(reply("2", "u")))
		w.answer("second", replying(reply("3", "v")))
		w.accept(brokerKey, "1")
		w.after(0)
		w.expectReceived(map[string]string{"first": "1", "second": "2", "third": "3", "all": "1 2 3"})
		want := map[string]string{"1": "255", "2": "254", "3": "253"}
		for _, c := range w.attempts("all") {
			if left, _ := c.event.Get(event.TTL); left != want[c.id] {
				t.Errorf("the TTL of event %s is %s, want %s", c.id, left, want[c.id])
			}
		}
		w.log.expectLeft(t, "b", nil)
	})
}

// A Trigger that gets its own replies continues until the TTL ends it.
func TestReplyLoopEnds(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a")
		w.set(c)
		w.answer("a", replying(newEvent("r")))
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		if have := len(w.attempts("a")); have != maxTTL {
			t.Errorf("%d attempts, want %d", have, maxTTL)
		}
		if mine, all := w.count(c.Key).looped.Load(), w.stream(brokerKey).counts.looped.Load(); mine != 1 || all != 1 {
			t.Errorf("%d and %d events were dropped in a loop, want 1 each", mine, all)
		}
		w.log.expectLeft(t, "b", nil)
	})
}

// A reply may have fewer hops left than the event, never more.
func TestReplyTTL(t *testing.T) {
	for _, test := range []struct{ event, reply, want string }{
		{"100", "", "98"}, {"100", "50", "49"}, {"100", "250", "98"}, {"100", "soon", "98"}, {"100", "1", ""}, {"2", "", ""}, {"3", "", "1"},
	} {
		t.Run(test.event+" answered "+test.reply, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a", ofType("t")), trigger("replies", ofType("u")))
				r := reply("2", "u")
				if test.reply != "" {
					r = reply("2", "u", ttl(test.reply))
				}
				w.answer("a", replying(r))
				w.must(w.Accept(w.Context(), brokerKey, []*event.Event{newEvent("1", ttl(test.event))}))
				w.after(0)
				have := ""
				for _, c := range w.attempts("replies") {
					have, _ = c.event.Get(event.TTL)
				}
				w.expect("TTL of the reply", have, test.want)
			})
		})
	}
}

// eventing Content Based Routing-11 and -12: if the reply cannot be stored, the delivery fails and is retried.
func TestReplyNotStored(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", ofType("t"), withDelivery(linear(3, time.Second)), withDeadLetter)
		w.set(c, trigger("replies", ofType("u")))
		w.answer("a", func(n int) (time.Duration, sender.Result) {
			w.log.setRefuse(func(queue string) error {
				if queue == delivery.SharedQueue && n < 3 {
					return errors.New("full")
				}
				return nil
			})
			return 0, sender.Result{Code: 200, Reply: reply("2", "u")}
		})
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		w.expectTimes("a", 0, time.Second, 2*time.Second)
		w.expectReceived(map[string]string{"replies": "2", "dead": ""})
		if delivered := w.count(c.Key).delivered.Load(); delivered != 1 {
			t.Errorf("%d events were delivered, want 1", delivered)
		}
		w.log.expectLeft(t, "b", nil)
	})
}

// eventing Event Delivery-5, -7 and -8: the reply of a Subscription's subscriber is delivered to its reply
// destination, with retries, and is sent to the dead letter sink if that fails.
func TestSubscriptionReply(t *testing.T) {
	for name, test := range map[string]struct {
		answer                  answer
		subscriber, reply, dead string
		dest                    string
	}{
		"received":          {nil, "1", "2", "", ""},
		"success at last":   {failing(2, 500), "1 1 1", "2", "", ""},
		"retries exhausted": {always(500), "1 1 1", "", "2", "http://reply/"},
		"not retryable":     {always(400), "1", "", "2", "http://reply/"},
		"unreachable":       {unreachable, "1 1 1", "", "2", "http://reply/"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(subscription("a", withReply, withDeadLetter, withDelivery(linear(2, time.Second))))
				w.answer("a", replying(newEvent("2")))
				w.answer("reply", test.answer)
				w.accept(channelKey, "1")
				w.after(time.Minute)
				w.expectReceived(map[string]string{"a": test.subscriber, "reply": test.reply, "dead": test.dead})
				for _, c := range w.attempts("dead") {
					if dest, _ := c.event.Get(event.ErrorDest); dest != test.dest {
						t.Errorf("%s is %q, want %q", event.ErrorDest, dest, test.dest)
					}
				}
				w.log.expectLeft(t, "c", nil)
			})
		})
	}
}

// eventing Event Delivery-6: without a reply destination replies are dropped.
func TestSubscriptionWithoutReplyDropsReplies(t *testing.T) {
	run(t, func(w *fixture) {
		c := subscription("a")
		w.set(c)
		w.answer("a", replying(newEvent("2")))
		w.accept(channelKey, "1")
		w.after(time.Minute)
		w.expectReceived(map[string]string{"a": "1"})
		if n := w.count(c.Key); n.delivered.Load() != 1 || n.dropped.Load() != 0 {
			t.Errorf("%d delivered and %d dropped, want 1 and 0", n.delivered.Load(), n.dropped.Load())
		}
		w.log.expectLeft(t, "c", nil)
	})
}

// The events of a Subscription without subscriber are sent to its reply destination, whose answers are not
// replies (eventing Derived (Reply) Events-4, eventing Subscription Lifecycle-9).
func TestSubscriptionWithoutSubscriber(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(subscription("a", withReply, func(c *eventing.Consumer) { c.Subscriber = eventing.Endpoint{} }))
		w.accept(channelKey, "1")
		w.after(0)
		calls := w.attempts("reply")
		if len(calls) != 1 || calls[0].options.ExpectReply {
			t.Errorf("attempts at the reply destination: %+v, want one that expects no reply", calls)
		}
		w.log.expectLeft(t, "c", nil)
	})
}
