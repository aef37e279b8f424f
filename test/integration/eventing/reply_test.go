package eventing

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// replying responds with an event in binary mode.
func replying(code int, id, kind, data string) harness.Answer {
	return harness.Answer{Code: code, Body: data, Header: http.Header{
		"Ce-Specversion": {"1.0"}, "Ce-Id": {id}, "Ce-Type": {kind}, "Ce-Source": {"/reply"}, "Ce-Ext": {"kept"}, "Content-Type": {"text/plain"},
	}}
}

// TestRepliesThroughTwoHops checks that a reply is sent to the Broker of the Trigger, matches all Triggers including the
// replier's, and may be replied to (eventing Content Based Routing-5, -6, -9 and -10; eventing Event Delivery-5; eventing
// Derived (Reply) Events-1 and -4).
func TestRepliesThroughTwoHops(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	first, second, third, all := sink.At("/first"), sink.At("/second"), sink.At("/third"), sink.At("/all")
	first.Answer(func(d *harness.Delivery) harness.Answer { return replying(http.StatusOK, d.ID+"-b", "b", "from first") })
	second.Answer(func(d *harness.Delivery) harness.Answer {
		return harness.Answer{Code: http.StatusOK, Header: http.Header{"Content-Type": {structuredType}},
			Body: fmt.Sprintf(`{"specversion":"1.0","id":"%s-c","type":"c","source":"/reply","datacontenttype":"text/plain","data":"from second"}`, d.ID)}
	})
	// This subscriber replies to the first event, and receives its own reply.
	all.Answer(func(d *harness.Delivery) harness.Answer {
		if d.ID == "1" {
			return replying(http.StatusOK, "own", "own", "")
		}
		return harness.Answer{}
	})
	address := shared.broker(t, ns, "orders")
	shared.trigger(t, ns, "orders", "first", first.URL, ofType("a"))
	shared.trigger(t, ns, "orders", "second", second.URL, ofType("b"))
	shared.trigger(t, ns, "orders", "third", third.URL, ofType("c"))
	shared.trigger(t, ns, "orders", "all", all.URL)
	mustPost(t, address, event{id: "1", kind: "a"})
	if err := all.AwaitAll(bounded(t), []string{"1", "1-b", "1-b-c", "own"}); err != nil {
		t.Fatal(err)
	}
	got := read(t, deliveryOf(t, second, "1-b"))
	if got.data != "from first" || got.contentType != "text/plain" || got.attributes["ext"] != "kept" || got.attributes["source"] != "/reply" {
		t.Errorf("the reply arrived as %+v", got)
	}
	if got := read(t, deliveryOf(t, third, "1-b-c")); got.data != "from second" {
		t.Errorf("the reply to the reply arrived as %+v", got)
	}
	for _, tt := range []struct {
		*harness.Subscriber
		want map[string]int
	}{
		{first, map[string]int{"1": 1}}, {second, map[string]int{"1-b": 1}}, {third, map[string]int{"1-b-c": 1}},
		{all, map[string]int{"1": 1, "1-b": 1, "1-b-c": 1, "own": 1}},
	} {
		if diff := cmp.Diff(tt.want, tt.Attempts()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.URL, diff)
		}
		for _, d := range tt.Deliveries() {
			if prefer := d.Header.Get("Prefer"); prefer != "reply" {
				t.Errorf("%s was asked to prefer %q", tt.URL, prefer)
			}
		}
	}
}

// converse creates a Trigger or Subscription called orders for events of type order, and a consumer of their replies of type
// reply. It returns the address of the Broker or Channel.
func converse(t *testing.T, consumer, namespace, subscriber, replies string, options *duckv1.DeliverySpec) string {
	t.Helper()
	if consumer == "Trigger" {
		address := shared.broker(t, namespace, "orders")
		shared.trigger(t, namespace, "orders", "orders", subscriber, ofType("order"), delivered(options))
		shared.trigger(t, namespace, "orders", "replies", replies, ofType("reply"))
		return address
	}
	address := shared.channel(t, namespace, "orders")
	shared.subscribe(t, newSubscription(namespace, "orders", "orders", to(uri(subscriber)), replyTo(uri(replies)), with(options)))
	return address
}

// TestNoReplies checks that only a 200 response can be a reply, and that an event in a 202 response is ignored (eventing
// Derived (Reply) Events-2 and -3; eventing Event Delivery-4).
// It covers eventing Event Acknowledgement and Delivery Retry-8 and -9.
func TestNoReplies(t *testing.T) {
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			ns := namespace()
			sink := harness.NewSink(t)
			subscriber, replies := sink.At("/"), sink.At("/replies")
			subscriber.Answer(func(d *harness.Delivery) harness.Answer {
				code, err := strconv.Atoi(d.ID)
				if err != nil {
					return harness.Answer{}
				}
				return replying(code, "reply-"+d.ID, "reply", "x")
			})
			address := converse(t, consumer.name, ns, subscriber.URL, replies.URL, retries(0, "PT0S"))
			for _, code := range []int{201, 202, 203, 299, 400, 500, 200} {
				mustPost(t, address, event{id: strconv.Itoa(code), kind: "order"})
				if err := subscriber.AwaitAttempts(bounded(t), func(attempts map[string]int) error {
					if attempts[strconv.Itoa(code)] == 0 {
						return fmt.Errorf("%d was not sent", code)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			if err := replies.AwaitAll(bounded(t), []string{"reply-200"}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]int{"reply-200": 1}, replies.Attempts()); diff != "" {
				t.Errorf("replies (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBodyWithoutEvent checks that a 200 response with a body that is not an event counts as delivered: no retry, no dead
// letter, and nothing is sent to the reply destination. DeliveryHealthy reports the problem until a delivery succeeds without
// such a body (eventing Event Acknowledgement and Delivery Retry; eventing Error Signalling).
func TestBodyWithoutEvent(t *testing.T) {
	bodies := map[string]harness.Answer{
		"json":      {Code: http.StatusOK, Body: `{"ok":true}`, Header: http.Header{"Content-Type": {"application/json"}}},
		"text":      {Code: http.StatusOK, Body: "OK"},
		"malformed": {Code: http.StatusOK, Body: `{"specversion":"1.0"}`, Header: http.Header{"Content-Type": {structuredType}}},
		"batch":     {Code: http.StatusOK, Body: `[]`, Header: http.Header{"Content-Type": {batchType}}},
	}
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			t.Parallel()
			ns := namespace()
			sink := harness.NewSink(t)
			subscriber, replies, dead := sink.At("/"), sink.At("/replies"), sink.At("/dead")
			subscriber.Answer(func(d *harness.Delivery) harness.Answer { return bodies[d.ID] })
			address := converse(t, consumer.name, ns, subscriber.URL, replies.URL, deadTo(uri(dead.URL), retries(5, "PT0.01S")))
			health := func(want corev1.ConditionStatus, reason string) (message string) {
				t.Helper()
				check := func(object metav1.Object, status *duckv1.Status) error {
					if err := condition(object, status, "DeliveryHealthy", want, reason); err != nil {
						return err
					}
					message = status.Conditions.Get("DeliveryHealthy").Message
					return condition(object, status, duckv1.ConditionReady, corev1.ConditionTrue, "")
				}
				if consumer.name == "Trigger" {
					eventually(t, shared.Knative.EventingV1().Triggers(ns), "orders", "reports deliveries", func(o *eventingv1.Trigger) error {
						return check(o, &o.Status.Status)
					})
				} else {
					eventually(t, shared.Knative.MessagingV1().Subscriptions(ns), "orders", "reports deliveries", func(o *messagingv1.Subscription) error {
						return check(o, &o.Status.Status)
					})
				}
				return message
			}
			want := map[string]int{"last": 1}
			for id := range bodies {
				want[id] = 1
				mustPost(t, address, event{id: id, kind: "order"})
				if err := subscriber.AwaitAll(bounded(t), []string{id}); err != nil {
					t.Fatal(err)
				}
				if message := health(corev1.ConditionFalse, "DeliveryFailing"); !strings.Contains(message, subscriber.URL) || !strings.Contains(message, "200") {
					t.Errorf("the message is %q, want the subscriber and the status 200", message)
				}
			}
			// The outcomes of these deliveries come before the one of the last.
			harness.Eventually(t, "all deliveries have ended", func() error {
				if n := metric(t, shared, "knative_eventing_events_delivered_total", consumer.name, ns, "orders"); n != float64(len(bodies)) {
					return fmt.Errorf("%v have", n)
				}
				return nil
			})
			mustPost(t, address, event{id: "last", kind: "order"})
			health(corev1.ConditionTrue, "")
			if diff := cmp.Diff(want, subscriber.Attempts()); diff != "" {
				t.Errorf("attempts (-want +got):\n%s", diff)
			}
			if n := replies.Requests() + dead.Requests(); n > 0 {
				t.Errorf("%d requests at the reply destination and the dead letter sink", n)
			}
		})
	}
}

// TestSubscriptionReplies checks that the reply of a Subscription's subscriber is sent to its reply destination. If that
// rejects it, the whole delivery is retried, and finally the reply becomes a dead letter; without a destination it is dropped
// (eventing Event Delivery-5 to -8; eventing Topology Based Routing-5).
// It covers eventing Event Delivery-11.
func TestSubscriptionReplies(t *testing.T) {
	for _, tt := range []struct {
		name string
		// refusals is the number of times that the reply destination responds with code.
		refusals, code int
		none           bool
		wantEvent      int
		wantReplies    int
		wantDead       map[string]int
	}{
		{name: "taken", wantEvent: 1, wantReplies: 1},
		{name: "taken at last", refusals: 2, code: 503, wantEvent: 3, wantReplies: 3},
		{name: "refused", refusals: 100, code: 400, wantEvent: 1, wantReplies: 1, wantDead: map[string]int{"reply": 1}},
		{name: "never taken", refusals: 100, code: 503, wantEvent: 4, wantReplies: 4, wantDead: map[string]int{"reply": 1}},
		{name: "no destination", none: true, wantEvent: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ns := namespace()
			sink := harness.NewSink(t)
			subscriber, replies, dead := sink.At("/"), sink.At("/replies"), sink.At("/dead")
			subscriber.Answer(func(d *harness.Delivery) harness.Answer {
				if d.ID == "event" {
					return replying(http.StatusOK, "reply", "reply", "x")
				}
				return harness.Answer{}
			})
			replies.Answer(func(d *harness.Delivery) harness.Answer {
				if d.Attempt <= tt.refusals {
					return harness.Answer{Code: tt.code}
				}
				return harness.Answer{}
			})
			subscription := newSubscription(ns, "orders", "orders", to(uri(subscriber.URL)), with(deadTo(uri(dead.URL), retries(3, "PT0.05S"))))
			if !tt.none {
				replyTo(uri(replies.URL))(subscription)
			}
			address := shared.channel(t, ns, "orders")
			shared.subscribe(t, subscription)
			mustPost(t, address, event{id: "event", kind: "order"})
			attempts := func(id string, n int) func(map[string]int) error {
				return func(got map[string]int) error {
					if got[id] < n {
						return fmt.Errorf("%d attempts with %s, want %d", got[id], id, n)
					}
					return nil
				}
			}
			if err := subscriber.AwaitAttempts(bounded(t), attempts("event", tt.wantEvent)); err != nil {
				t.Fatal(err)
			}
			if err := replies.AwaitAttempts(bounded(t), attempts("reply", tt.wantReplies)); err != nil {
				t.Fatal(err)
			}
			for id := range tt.wantDead {
				if err := dead.AwaitAll(bounded(t), []string{id}); err != nil {
					t.Fatal(err)
				}
			}
			mustPost(t, address, event{id: "last", kind: "order"})
			if err := subscriber.AwaitAll(bounded(t), []string{"last"}); err != nil {
				t.Fatal(err)
			}
			if n := subscriber.Attempts()["event"]; n != tt.wantEvent {
				t.Errorf("%d attempts at the subscriber, want %d", n, tt.wantEvent)
			}
			if n := replies.Attempts()["reply"]; n != tt.wantReplies {
				t.Errorf("%d attempts at the reply destination, want %d", n, tt.wantReplies)
			}
			if got := dead.Attempts(); len(got) != len(tt.wantDead) {
				t.Errorf("dead letters are %v, want %v", got, tt.wantDead)
			}
		})
	}
}

// TestReplyAlone checks that a Subscription with only a reply destination sends events there, and that no replies are requested
// or routed (eventing Subscription Lifecycle-9).
func TestReplyAlone(t *testing.T) {
	ns := namespace()
	replies := harness.NewSink(t).At("/")
	replies.Answer(func(d *harness.Delivery) harness.Answer {
		return replying(http.StatusOK, "answer-to-"+d.ID, "reply", "x")
	})
	address := shared.channel(t, ns, "orders")
	shared.subscribe(t, newSubscription(ns, "orders", "orders", replyTo(uri(replies.URL))))
	events := numbered("event", "order", 3)
	mustPost(t, address, events...)
	for _, e := range events {
		if prefer, found := deliveryOf(t, replies, e.id).Header["Prefer"]; found {
			t.Errorf("the reply destination was asked to prefer %q", prefer)
		}
	}
	if n := replies.Requests(); n != len(events) {
		t.Errorf("%d requests, want %d", n, len(events))
	}
}
