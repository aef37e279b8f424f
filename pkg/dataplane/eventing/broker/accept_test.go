package broker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// eventing Content Based Routing-4 to -7: each Trigger is evaluated once, on acceptance, and one delivery is made
// for each that matches, also of those with the same destination.
func TestEachMatchIsDelivered(t *testing.T) {
	run(t, func(w *fixture) {
		same := func(c *eventing.Consumer) { c.Subscriber.URL = "http://same/" }
		w.set(trigger("a", same), trigger("b", same), trigger("c"),
			trigger("typed", func(c *eventing.Consumer) { c.Attributes = map[string]string{"type": "t"} }),
			trigger("other", func(c *eventing.Consumer) { c.Attributes = map[string]string{"type": "u"} }),
			trigger("filters", func(c *eventing.Consumer) {
				c.Attributes = map[string]string{"type": "u"}
				c.Filters = []eventing.Filter{{Prefix: map[string]string{"id": "2"}}}
			}))
		w.accept(brokerKey, "1", "2")
		w.after(0)
		w.expectReceived(map[string]string{"same": "1 1 2 2", "c": "1 2", "typed": "1 2", "other": "", "filters": "2"})
		w.log.expectLeft(t, "b", nil)
	})
}

// eventing Topology Based Routing-4 and -6: one delivery for each Subscription, also of those with the same
// destination.
func TestEachSubscriptionIsDelivered(t *testing.T) {
	run(t, func(w *fixture) {
		same := func(c *eventing.Consumer) { c.Subscriber.URL = "http://same/" }
		w.set(subscription("a", same), subscription("b", same), trigger("c"))
		w.accept(channelKey, "1")
		w.after(0)
		w.expectReceived(map[string]string{"same": "1 1", "c": ""})
		w.log.expectLeft(t, "c", nil)
	})
}

// The consumers of an event are determined when it is accepted, and do not change with the filters.
func TestMatchedOnAcceptance(t *testing.T) {
	run(t, func(w *fixture) {
		only := func(kind string) func(*eventing.Consumer) {
			return func(c *eventing.Consumer) {
				c.Attributes = map[string]string{"type": kind}
				c.Delivery = linear(1, time.Hour)
			}
		}
		w.set(trigger("a", only("t")))
		w.answer("a", failing(1, 500))
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		w.set(trigger("a", only("u")), trigger("late"))
		w.accept(brokerKey, "2")
		w.after(time.Hour)
		w.expectReceived(map[string]string{"a": "1", "late": "2"})
	})
}

// A batch is accepted as a whole, and its events have the order of the batch.
func TestAcceptBatch(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"), trigger("o", ordered))
		w.must(w.Accept(w.Context(), brokerKey, []*event.Event{newEvent("1"), newEvent("2"), newEvent("3")}))
		w.after(0)
		w.expectReceived(map[string]string{"a": "1 2 3", "o": "1 2 3"})
		w.expect("order of the ordered", w.received("o"), "1 2 3")
		w.log.expectLeft(t, "b", nil)
		if accepted := w.stream(brokerKey).counts.accepted.Load(); accepted != 3 {
			t.Errorf("%d events were accepted, want 3", accepted)
		}
	})
}

// The data of events may be reused once they are accepted.
func TestAcceptKeepsNothing(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"))
		e := newEvent("1")
		w.must(w.Accept(w.Context(), brokerKey, []*event.Event{e}))
		for i := range e.Data {
			e.Data[i] = 'x'
		}
		w.after(0)
		if have := w.attempts("a"); len(have) != 1 || string(have[0].event.Data) != "data of 1" {
			t.Errorf("attempts: %v, want one with the original data", have)
		}
	})
}

// The TTL is counted down on each pass through a Broker.
func TestTTL(t *testing.T) {
	for _, test := range []struct{ has, want string }{
		{"", "255"}, {"255", "254"}, {"2", "1"}, {"300", "254"}, {"9999999999999999999999", "254"}, {"soon", "254"},
		{"1", ""}, {"0", ""}, {"-5", ""},
	} {
		t.Run(test.has, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a"))
				e := newEvent("1")
				if test.has != "" {
					e = newEvent("1", ttl(test.has))
				}
				err := w.Accept(w.Context(), brokerKey, []*event.Event{e})
				w.after(0)
				if test.want == "" {
					expectRefusal(t, err, http.StatusBadRequest, 0)
					if looped := w.stream(brokerKey).counts.looped.Load(); looped != 1 || w.tried("a") != "" {
						t.Errorf("%d events were dropped in a loop, and the subscriber got %q; want 1 and none", looped, w.tried("a"))
					}
					return
				}
				w.must(err)
				calls := w.attempts("a")
				if len(calls) != 1 {
					t.Fatalf("%d attempts, want 1", len(calls))
				}
				if have, _ := calls[0].event.Get(event.TTL); have != test.want {
					t.Errorf("the subscriber sees %q, want %q", have, test.want)
				}
			})
		})
	}
}

// The TTL never reaches the subscribers of a Channel, nor their dead letters.
func TestChannelHidesTTL(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(subscription("a", withDeadLetter))
		w.answer("a", always(400))
		w.must(w.Accept(w.Context(), channelKey, []*event.Event{newEvent("1"), newEvent("2", ttl("1")), newEvent("3", ttl("7"))}))
		w.after(0)
		w.expectReceived(map[string]string{"dead": "1 2 3"})
		for _, c := range append(w.attempts("a"), w.attempts("dead")...) {
			if have, found := c.event.Get(event.TTL); found {
				t.Errorf("%s sees the TTL %q of %s, want none", c.url, have, c.id)
			}
		}
	})
}

func expectRefusal(t *testing.T, err error, status int, retryAfter time.Duration) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want a rejection with status %d", status)
		return
	}
	if refusal := ingress.RefusalOf(err); refusal.Status != status || refusal.RetryAfter != retryAfter || refusal.Message == "" {
		t.Errorf("%#v, want a rejection with status %d and Retry-After %v", err, status, retryAfter)
	}
}

func TestAcceptErrors(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		status int
		after  time.Duration
	}{
		"too large":   {fmt.Errorf("append: %w", eventlog.ErrTooLarge), http.StatusRequestEntityTooLarge, 0},
		"share":       {fmt.Errorf("append: %w", eventlog.ErrShareFull), http.StatusServiceUnavailable, 5 * time.Second},
		"full":        {fmt.Errorf("append: %w", eventlog.ErrFull), http.StatusServiceUnavailable, 5 * time.Second},
		"unavailable": {fmt.Errorf("append: %w", eventlog.ErrUnavailable), http.StatusServiceUnavailable, 5 * time.Second},
		"closed":      {eventlog.ErrClosed, http.StatusServiceUnavailable, 5 * time.Second},
		"any":         {errors.New("any"), http.StatusServiceUnavailable, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(trigger("a"), trigger("o", ordered))
				w.log.setRefuse(func(string) error { return test.err })
				expectRefusal(t, w.Accept(w.Context(), brokerKey, []*event.Event{newEvent("1")}), test.status, test.after)
				w.log.setRefuse(nil)
				w.accept(brokerKey, "2")
				w.after(0)
				w.expectReceived(map[string]string{"a": "2", "o": "2"})
				if accepted := w.stream(brokerKey).counts.accepted.Load(); accepted != 1 {
					t.Errorf("%d events were accepted, want 1", accepted)
				}
			})
		})
	}
}

func TestAcceptWhenTheSenderIsGone(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a"))
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		if err := w.Accept(ctx, brokerKey, []*event.Event{newEvent("1")}); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want the error of the canceled context", err)
		}
	})
}

func TestAcceptWithoutConsumers(t *testing.T) {
	run(t, func(w *fixture) {
		w.accept(brokerKey, "1")
		w.log.expectLeft(t, "b", nil)
		unknown := brokerKey
		unknown.Name = "unknown"
		expectRefusal(t, w.Accept(w.Context(), unknown, []*event.Event{newEvent("1")}), http.StatusNotFound, 0)
		if w.Exists(unknown) || !w.Exists(brokerKey) {
			t.Errorf("the unknown Broker exists: %v, the known: %v", w.Exists(unknown), w.Exists(brokerKey))
		}
	})
}

// Consumers that exist when an event is accepted receive it, regardless of concurrent changes.
func TestAcceptWhileConsumersChange(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("constant"))
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := range 200 {
				c := trigger("changing", func(c *eventing.Consumer) { c.Delivery.Retry = i })
				if w.SetConsumer(w.Context(), c) != nil || i%3 == 0 && w.RemoveConsumer(w.Context(), c.Key) != nil {
					t.Error("changing the consumer failed")
				}
			}
		}()
		for i := range 500 {
			w.accept(brokerKey, strconv.Itoa(i))
		}
		<-done
		w.after(time.Minute)
		if have := len(w.attempts("constant")); have != 500 {
			t.Errorf("%d events were delivered, want 500", have)
		}
		w.log.expectLeft(t, "b", nil)
	})
}

// A Trigger does not get an event for which its filters exceed their budget: the metrics count it, others get the
// event, and the Trigger gets the next one.
func TestCostlyFilter(t *testing.T) {
	run(t, func(w *fixture) {
		registry := metrics.NewKubeRegistry()
		w.must(registry.CustomRegister(w.Broker))
		costly := trigger("costly", func(c *eventing.Consumer) {
			like := eventing.Filter{CESQL: "long LIKE '%" + strings.Repeat("a", 3900) + "_b%'"}
			c.Filters = []eventing.Filter{{Not: &like}}
		})
		w.set(costly, trigger("a"))
		long := func(id string, length int) *event.Event {
			return newEvent(id).With(event.Attribute{Name: "long", Value: strings.Repeat("a", length)})
		}
		w.must(w.Accept(w.Context(), brokerKey, []*event.Event{long("1", 60_000)}))
		w.after(time.Second)
		w.expectReceived(map[string]string{"costly": "", "a": "1"})
		w.expectMetric(registry, "events_unfiltered_total", "counter", "Trigger a 0", "Trigger costly 1")
		w.expectHealth(costly.Key, eventing.Health{Failing: true, Since: w.start, LastError: errUnfiltered.Error()})
		w.expectHealth(trigger("a").Key, eventing.Health{})
		w.must(w.Accept(w.Context(), brokerKey, []*event.Event{long("2", 60)}))
		w.after(time.Minute)
		w.expectReceived(map[string]string{"costly": "2", "a": "1 2"})
		w.expectHealth(costly.Key, eventing.Health{})

		gone, cancel := context.WithCancel(w.Context())
		cancel()
		if err := w.Accept(gone, brokerKey, []*event.Event{long("3", 60_000)}); !errors.Is(err, context.Canceled) {
			t.Errorf("Accept returned %v after its sender had disconnected", err)
		}
	})
}
