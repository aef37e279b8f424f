package eventing

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestLoopsEnd checks that a cycle of replies or of Brokers ends after the documented number of Brokers (eventing Content Based
// Routing-14; eventing Content Based Routing-10).
// It covers eventing Content Based Routing-17.
func TestLoopsEnd(t *testing.T) {
	const passes = 8
	looping := event{id: "1", kind: "order", extensions: map[string]string{"knativebrokerttl": fmt.Sprint(passes)}}
	echo := func(d *harness.Delivery) harness.Answer {
		answer := replying(http.StatusOK, d.ID+"x", "order", "x")
		// A loop count in the reply is ignored, like a missing one.
		answer.Header.Set("Ce-Knativebrokerttl", "200")
		return answer
	}
	for _, tt := range []struct {
		name string
		set  func(t *testing.T, ns string, sink *harness.Sink) (address string)
		// want is the number of events that the subscriber receives.
		want int
	}{
		{"replies", func(t *testing.T, ns string, sink *harness.Sink) string {
			t.Helper()
			address := shared.broker(t, ns, "orders")
			sink.At("/").Answer(echo)
			shared.trigger(t, ns, "orders", "orders", sink.At("/").URL)
			return address
		}, passes - 1},
		{"two Brokers", func(t *testing.T, ns string, sink *harness.Sink) string {
			t.Helper()
			address := shared.broker(t, ns, "orders")
			shared.broker(t, ns, "others")
			shared.trigger(t, ns, "orders", "to-others", "", sentTo(brokerRef("others")))
			shared.trigger(t, ns, "others", "to-orders", "", sentTo(brokerRef("orders")))
			shared.trigger(t, ns, "orders", "orders", sink.At("/").URL)
			return address
		}, passes / 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns, sink := namespace(), harness.NewSink(t)
			subscriber := sink.At("/")
			address := tt.set(t, ns, sink)
			mustPost(t, address, looping)
			var looped float64
			harness.Eventually(t, "the loop is counted", func() error {
				looped = 0
				for _, kind := range []string{"Broker", "Trigger"} {
					for _, name := range []string{"orders", "others"} {
						looped += metric(t, shared, "knative_eventing_events_looped_total", kind, ns, name)
					}
				}
				if looped == 0 {
					return fmt.Errorf("nothing is")
				}
				return nil
			})
			// The Trigger of the subscriber may be behind the Triggers of the loop.
			if err := subscriber.AwaitAttempts(bounded(t), func(map[string]int) error {
				if n := subscriber.Requests(); n < tt.want {
					return fmt.Errorf("the subscriber got %d events, want %d", n, tt.want)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if n := subscriber.Requests(); n != tt.want {
				t.Errorf("the subscriber got %d events, want %d", n, tt.want)
			}
		})
	}
}

// TestLoopCount checks that a sender's loop count is at most 255, and that an event with a count of zero is rejected with the
// reason.
func TestLoopCount(t *testing.T) {
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	address := shared.broker(t, ns, "orders")
	shared.trigger(t, ns, "orders", "orders", subscriber.URL)
	got := map[string]string{}
	for id, ttl := range map[string]string{"new": "", "many": "1000000", "two": "2", "text": "soon"} {
		e := event{id: id, kind: "order"}
		if ttl != "" {
			e.extensions = map[string]string{"knativebrokerttl": ttl}
		}
		mustPost(t, address, e)
		got[id] = read(t, deliveryOf(t, subscriber, id)).attributes["knativebrokerttl"]
	}
	if diff := cmp.Diff(map[string]string{"new": "255", "many": "254", "two": "1", "text": "254"}, got); diff != "" {
		t.Errorf("knativebrokerttl as the subscriber sees it (-want +got):\n%s", diff)
	}
	for _, ttl := range []string{"1", "0", "-1"} {
		a, err := post(t.Context(), address, event{id: "end", kind: "order", extensions: map[string]string{"knativebrokerttl": ttl}})
		if err != nil || a.code != http.StatusBadRequest {
			t.Errorf("with knativebrokerttl %s: %+v %v, want 400", ttl, a, err)
		}
	}
	if n := subscriber.Attempts()["end"]; n > 0 {
		t.Errorf("an event with a loop count of zero was delivered %d times", n)
	}
}

// TestChannelHidesLoopCount checks that subscribers of a Channel do not receive the loop count of Brokers.
func TestChannelHidesLoopCount(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	subscriber, dead := sink.At("/"), sink.At("/dead")
	subscriber.AnswerCode(http.StatusBadRequest)
	address := shared.channel(t, ns, "orders")
	shared.subscribe(t, newSubscription(ns, "orders", "orders", to(uri(subscriber.URL)), with(deadTo(uri(dead.URL), nil))))
	mustPost(t, address, event{id: "new", kind: "order"}, event{id: "old", kind: "order", extensions: map[string]string{"knativebrokerttl": "7"}})
	if err := dead.AwaitAll(bounded(t), []string{"new", "old"}); err != nil {
		t.Fatal(err)
	}
	for _, d := range append(subscriber.Deliveries(), dead.Deliveries()...) {
		if ttl, found := read(t, d).attributes["knativebrokerttl"]; found {
			t.Errorf("event %s arrived with knativebrokerttl %s", d.ID, ttl)
		}
	}
}
