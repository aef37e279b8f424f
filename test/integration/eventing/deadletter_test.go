package eventing

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestEffectiveDeadLetterSink checks that the delivery options of the Trigger or Subscription, if any, replace the options of
// its Broker or Channel as a whole (eventing Broker-1, eventing Channel-2, eventing Event Delivery-1, -8 and -9).
// It covers eventing Broker-5, eventing Channel-7.
func TestEffectiveDeadLetterSink(t *testing.T) {
	for _, tt := range []struct {
		name string
		// parent and own are the delivery options of the Broker or Channel and of the Trigger or Subscription.
		parent, own func(parentSink, ownSink *duckv1.Destination) *duckv1.DeliverySpec
		attempts    int
		// dead is the sink of the dead letter: parent, own or none.
		dead string
	}{
		{"the parent's by default",
			func(sink, _ *duckv1.Destination) *duckv1.DeliverySpec { return deadTo(sink, retries(2, "PT0.05S")) }, nil, 3, "parent"},
		{"its own alone",
			nil, func(_, sink *duckv1.Destination) *duckv1.DeliverySpec { return deadTo(sink, retries(1, "PT0.05S")) }, 2, "own"},
		{"its own instead of the parent's",
			func(sink, _ *duckv1.Destination) *duckv1.DeliverySpec { return deadTo(sink, retries(2, "PT0.05S")) },
			func(_, sink *duckv1.Destination) *duckv1.DeliverySpec { return deadTo(sink, retries(1, "PT0.05S")) }, 2, "own"},
		{"its own retries without the parent's sink",
			func(sink, _ *duckv1.Destination) *duckv1.DeliverySpec { return deadTo(sink, retries(2, "PT0.05S")) },
			func(_, _ *duckv1.Destination) *duckv1.DeliverySpec { return retries(1, "PT0.05S") }, 2, ""},
		{"its own sink without the parent's retries",
			func(sink, _ *duckv1.Destination) *duckv1.DeliverySpec { return deadTo(sink, retries(2, "PT0.05S")) },
			func(_, sink *duckv1.Destination) *duckv1.DeliverySpec { return deadTo(sink, nil) }, 1, "own"},
	} {
		for _, consumer := range consumers {
			t.Run(consumer.name+", "+tt.name, func(t *testing.T) {
				t.Parallel()
				ns := namespace()
				sink := harness.NewSink(t)
				subscriber := sink.At("/")
				sinks := map[string]*harness.Subscriber{"parent": sink.At("/parent"), "own": sink.At("/own")}
				subscriber.Answer(func(d *harness.Delivery) harness.Answer {
					if d.ID == "1" {
						return harness.Answer{Code: http.StatusServiceUnavailable}
					}
					return harness.Answer{}
				})
				spec := func(of func(parentSink, ownSink *duckv1.Destination) *duckv1.DeliverySpec) *duckv1.DeliverySpec {
					if of == nil {
						return nil
					}
					return of(uri(sinks["parent"].URL), uri(sinks["own"].URL))
				}
				meta := metav1.ObjectMeta{Namespace: ns, Name: "orders"}
				var address, status string
				if consumer.name == "Trigger" {
					brokers := shared.Knative.EventingV1().Brokers(ns)
					create(t, brokers, &eventingv1.Broker{ObjectMeta: meta, Spec: eventingv1.BrokerSpec{Delivery: spec(tt.parent)}})
					shared.trigger(t, ns, "orders", "orders", subscriber.URL, delivered(spec(tt.own)))
					address = fetch(t, brokers, "orders").Status.Address.GetURL()
					status = fetch(t, shared.Knative.EventingV1().Triggers(ns), "orders").Status.DeadLetterSinkURI
				} else {
					channels := shared.Knative.MessagingV1().Channels(ns)
					create(t, channels, &messagingv1.Channel{ObjectMeta: meta, Spec: messagingv1.ChannelSpec{Delivery: spec(tt.parent)}})
					status = shared.subscribe(t, newSubscription(ns, "orders", "orders", to(uri(subscriber.URL)), with(spec(tt.own)))).Status.PhysicalSubscription.DeadLetterSinkURI
					address = fetch(t, channels, "orders").Status.Address.GetURL()
				}
				want := ""
				if tt.dead != "" {
					want = sinks[tt.dead].URL
				}
				if status != want {
					t.Errorf("the status has the dead letter sink %q, want %q", status, want)
				}
				mustPost(t, address, event{id: "1", kind: "order"})
				if err := subscriber.AwaitAttempts(bounded(t), func(attempts map[string]int) error {
					if attempts["1"] < tt.attempts {
						return fmt.Errorf("%d attempts, want %d", attempts["1"], tt.attempts)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if tt.dead != "" {
					if err := sinks[tt.dead].AwaitAll(bounded(t), []string{"1"}); err != nil {
						t.Fatal(err)
					}
				}
				mustPost(t, address, event{id: "2", kind: "order"})
				if err := subscriber.AwaitAll(bounded(t), []string{"2"}); err != nil {
					t.Fatal(err)
				}
				if n := subscriber.Attempts()["1"]; n != tt.attempts {
					t.Errorf("%d attempts, want %d", n, tt.attempts)
				}
				for name, s := range sinks {
					if n := s.Requests(); (n == 1) != (name == tt.dead) || n > 1 {
						t.Errorf("the %s dead letter sink got %d requests", name, n)
					}
				}
			})
		}
	}
}

// TestDeadLetters checks that a dead letter is the unchanged event with attributes for the destination and the reason of the
// failure (eventing Event Delivery-8, eventing Content Based Routing-8, eventing Topology Based Routing-7).
// It covers eventing Event Delivery-12, eventing DeliverySpec-1.
func TestDeadLetters(t *testing.T) {
	const data = "{ \"a\" : 1.0 }\n"
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			sink := harness.NewSink(t)
			subscriber, dead := sink.At("/orders"), sink.At("/dead")
			long := strings.Repeat("é", 5000)
			subscriber.Answer(func(d *harness.Delivery) harness.Answer {
				return map[string]harness.Answer{
					"refused": {Code: http.StatusTeapot, Body: "no tea \x00\xff"},
					"silent":  {Code: http.StatusForbidden},
					"long":    {Code: http.StatusInternalServerError, Body: long},
					"dropped": {Drop: true},
				}[d.ID]
			})
			ns := namespace()
			// A response is only disclosed to the tenant if a host of its own namespace sent it.
			own := strings.Replace(subscriber.URL, "127.0.0.1", "orders."+ns+".localhost", 1)
			address := consumer.consume(t, ns, own, deadTo(uri(dead.URL), retries(1, "PT0.01S")))
			for id, want := range map[string]struct{ code, data string }{
				"refused": {"418", "no tea \x00\xff"},
				"silent":  {"403", ""},
				"long":    {"500", long[:768]},
				"dropped": {"", "*"},
			} {
				binary(id, data, map[string]string{"Content-Type": "application/json", "Ce-Ext": "kept"}).mustSend(t, address)
				e := read(t, deliveryOf(t, dead, id))
				if e.data != data || e.contentType != "application/json" || e.attributes["ext"] != "kept" || e.attributes["type"] != "order" {
					t.Errorf("%s: the dead letter is %+v", id, e)
				}
				if e.attributes["knativeerrordest"] != own || e.attributes["knativeerrorcode"] != want.code {
					t.Errorf("%s: the dead letter has %q and code %q, want %q and %q",
						id, e.attributes["knativeerrordest"], e.attributes["knativeerrorcode"], own, want.code)
				}
				encoded := e.attributes["knativeerrordata"]
				said, err := base64.StdEncoding.DecodeString(encoded)
				if err != nil || len(encoded) > 1024 || want.data != "*" && string(said) != want.data || want.data == "*" && len(said) == 0 {
					t.Errorf("%s: knativeerrordata is %d characters of %q, %v; want %q", id, len(encoded), said, err, want.data)
				}
			}
		})
	}
}

// TestDeadLettersAreRetried checks that dead letters are retried like events (eventing Event Delivery-10), also to a Broker.
func TestDeadLettersAreRetried(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	subscriber, dead := sink.At("/"), sink.At("/dead")
	subscriber.AnswerCode(http.StatusBadRequest)
	dead.Answer(func(d *harness.Delivery) harness.Answer {
		if d.Attempt < 3 {
			return harness.Answer{Code: http.StatusServiceUnavailable}
		}
		return harness.Answer{}
	})
	letters := shared.broker(t, ns, "letters")
	shared.trigger(t, ns, "letters", "letters", dead.URL, delivered(retries(5, "PT0.05S")))
	address := shared.broker(t, ns, "orders")
	shared.trigger(t, ns, "orders", "direct", subscriber.URL, ofType("direct"), delivered(deadTo(uri(dead.URL), retries(5, "PT0.05S"))))
	shared.trigger(t, ns, "orders", "broker", subscriber.URL, ofType("broker"), delivered(deadTo(brokerRef("letters"), nil)))
	if got := fetch(t, shared.Knative.EventingV1().Triggers(ns), "broker").Status.DeadLetterSinkURI; got != letters {
		t.Errorf("the status has the dead letter sink %q, want %q", got, letters)
	}
	mustPost(t, address, event{id: "1", kind: "direct"}, event{id: "2", kind: "broker"})
	if err := dead.AwaitAll(bounded(t), []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"1": 3, "2": 3}, dead.Attempts()); diff != "" {
		t.Errorf("attempts at the dead letter sink (-want +got):\n%s", diff)
	}
}
