package eventing

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// metric returns the value of a series of /metrics by name and labels, 0 if it does not exist.
func metric(t testing.TB, s *server, name, kind, namespace, object string) float64 {
	t.Helper()
	value, _ := lookup(t, s, fmt.Sprintf(`%s{kind=%q,name=%q,namespace=%q}`, name, kind, object, namespace))
	return value
}

// lookup returns the value of a series of /metrics, and whether it exists.
func lookup(t testing.TB, s *server, series string) (value float64, found bool) {
	t.Helper()
	match := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindSubmatch(scrape(t, s))
	if match == nil {
		return 0, false
	}
	value, err := strconv.ParseFloat(string(match[1]), 64)
	if err != nil {
		t.Fatalf("%s: %v", series, err)
	}
	return value, true
}

// scrape returns the text of /metrics.
func scrape(t testing.TB, s *server) []byte {
	t.Helper()
	response := s.Do(t, harness.Request{Method: http.MethodGet, Path: "/metrics", Accept: "text/plain"})
	if response.Code != http.StatusOK {
		t.Fatalf("GET /metrics: %d %s", response.Code, response.Body)
	}
	return response.Body
}

// TestMetrics checks that the metrics report the outcomes of events, and are removed with their objects.
func TestMetrics(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	subscriber, dead := sink.At("/"), sink.At("/dead")
	hang := make(chan struct{})
	subscriber.Answer(func(d *harness.Delivery) harness.Answer {
		switch {
		case d.ID == "slow":
			<-hang
		case d.ID == "lost", d.ID == "dropped", d.ID == "late" && d.Attempt <= 2:
			return harness.Answer{Code: http.StatusServiceUnavailable}
		}
		return harness.Answer{}
	})
	address, channel := shared.broker(t, ns, "orders"), shared.channel(t, ns, "orders")
	shared.trigger(t, ns, "orders", "orders", subscriber.URL, ofType("order"), delivered(deadTo(uri(dead.URL), retries(2, "PT0.01S"))))
	shared.trigger(t, ns, "orders", "sinkless", subscriber.URL, ofType("other"), delivered(retries(2, "PT0.01S")), annotated(duckv1.DeadLetterStoreAnnotationKey, "disabled"))
	shared.subscribe(t, newSubscription(ns, "orders", "orders", to(uri(subscriber.URL))))
	mustPost(t, address, event{id: "1", kind: "order"}, event{id: "2", kind: "order"}, event{id: "late", kind: "order"},
		event{id: "lost", kind: "order"}, event{id: "unmatched", kind: "unknown"}, event{id: "dropped", kind: "other"})
	mustPost(t, channel, event{id: "3", kind: "order"})
	expect := func(kind, name string, want map[string]float64) {
		t.Helper()
		for series, value := range want {
			harness.Eventually(t, fmt.Sprintf("%s of %s %s is %v", series, kind, name, value), func() error {
				if got := metric(t, shared, "knative_eventing_"+series, kind, ns, name); got != value {
					return fmt.Errorf("it is %v", got)
				}
				return nil
			})
		}
	}
	expect("Broker", "orders", map[string]float64{"events_accepted_total": 6, "events_matched_total": 5, "events_looped_total": 0})
	expect("Trigger", "orders", map[string]float64{
		"events_matched_total": 4, "events_delivered_total": 3, "delivery_retries_total": 4,
		"events_dead_lettered_total": 1, "events_dropped_total": 0, "deliveries_in_flight": 0,
	})
	expect("Trigger", "sinkless", map[string]float64{
		"events_matched_total": 1, "events_delivered_total": 0, "delivery_retries_total": 2, "events_dropped_total": 1,
		"deliveries_in_flight": 0, "oldest_undelivered_event_seconds": 0,
	})
	expect("Channel", "orders", map[string]float64{"events_accepted_total": 1, "events_matched_total": 1})
	expect("Subscription", "orders", map[string]float64{"events_matched_total": 1, "events_delivered_total": 1})
	mustPost(t, address, event{id: "slow", kind: "order"})
	expect("Trigger", "orders", map[string]float64{"deliveries_in_flight": 1})
	harness.Eventually(t, "the oldest undelivered event gets older", func() error {
		if lag := metric(t, shared, "knative_eventing_oldest_undelivered_event_seconds", "Trigger", ns, "orders"); lag <= 0.1 {
			return fmt.Errorf("it is %v s old", lag)
		}
		return nil
	})
	close(hang)
	expect("Trigger", "orders", map[string]float64{"events_delivered_total": 4, "deliveries_in_flight": 0, "oldest_undelivered_event_seconds": 0})
	if n, found := lookup(t, shared, `knative_broker_ingress_requests_total{code="202"}`); !found || n < 8 {
		t.Errorf("%v requests were answered with 202, want at least 8", n)
	}

	if err := shared.Knative.EventingV1().Triggers(ns).Delete(t.Context(), "orders", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "metrics of a deleted Trigger are removed", func() error {
		if _, found := lookup(t, shared, fmt.Sprintf(`knative_eventing_events_matched_total{kind="Trigger",name="orders",namespace=%q}`, ns)); found {
			return fmt.Errorf("there are some")
		}
		return nil
	})
}
