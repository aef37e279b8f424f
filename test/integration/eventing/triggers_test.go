package eventing

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// createTriggers creates Triggers and waits until all are ready.
func (s *server) createTriggers(t *testing.T, namespace, broker string, count int, subscriber func(i int) string, options func(i int) []triggerOption) {
	t.Helper()
	triggers := s.Knative.EventingV1().Triggers(namespace)
	var running sync.WaitGroup
	for worker := range 8 {
		running.Go(func() {
			for i := worker; i < count; i += 8 {
				trigger := newTrigger(namespace, broker, fmt.Sprintf("trigger-%d", i), subscriber(i), options(i)...)
				if _, err := triggers.Create(t.Context(), trigger, metav1.CreateOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	if t.Failed() {
		t.FailNow()
	}
	harness.Eventually(t, "all Triggers are ready", func() error {
		list, err := triggers.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			trigger := &list.Items[i]
			if err := condition(trigger, &trigger.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, ""); err != nil {
				return fmt.Errorf("%s: %w", trigger.Name, err)
			}
		}
		return nil
	})
}

// TestThousandTriggers checks that only the matching one of a thousand Triggers receives each event, once (eventing Content
// Based Routing-4).
func TestThousandTriggers(t *testing.T) {
	const count, matching = 1000, 617
	ns := namespace()
	sink := harness.NewSink(t)
	match, others := sink.At("/match"), sink.At("/others")
	address := shared.broker(t, ns, "orders")
	shared.createTriggers(t, ns, "orders", count,
		func(i int) string {
			if i == matching {
				return match.URL
			}
			return others.URL
		},
		func(i int) []triggerOption { return []triggerOption{ofType(fmt.Sprintf("order-%d", i))} })

	events := numbered("event", fmt.Sprintf("order-%d", matching), 200)
	postConcurrently(t, address, 8, events)
	// Wrong deliveries would arrive before these, or together with them.
	postConcurrently(t, address, 8, numbered("unknown", fmt.Sprintf("order-%d", count), 50))
	if err := match.AwaitAll(bounded(t), ids(events)); err != nil {
		t.Fatal(err)
	}
	if n := match.Requests(); n != len(events) {
		t.Errorf("the matching Trigger's subscriber got %d requests for %d events", n, len(events))
	}
	if n := others.Requests(); n > 0 {
		t.Errorf("subscribers of other Triggers got %d requests", n)
	}

	// A changed Trigger is reconciled for the change and for its status. Objects of earlier tests may be too.
	before := shared.reconciled(t)
	harness.Edit(t, shared.Knative.EventingV1().Triggers(ns), "trigger-0", func(trigger *eventingv1.Trigger) {
		trigger.Spec.Subscriber = duckv1.Destination{URI: match.URL}
	})
	harness.Eventually(t, "the changed Trigger gets events", func() error {
		mustPost(t, address, event{id: "changed", kind: "order-0"})
		if match.Attempts()["changed"] == 0 {
			return errors.New("no attempt")
		}
		return nil
	})
	if n := shared.reconciled(t) - before; n > 20 {
		t.Errorf("%v reconciliations for one changed Trigger of %d", n, count)
	}
}

// reconciled returns the number of keys that all queues of controllers got, once it has not changed for a second.
func (s *server) reconciled(t *testing.T) (keys float64) {
	t.Helper()
	var since time.Time
	harness.Eventually(t, "no controller has work for a second", func() error {
		now := 0.0
		for _, match := range regexp.MustCompile(`(?m)^workqueue_adds_total\{.*\} (\S+)$`).FindAllSubmatch(scrape(t, s), -1) {
			n, err := strconv.ParseFloat(string(match[1]), 64)
			if err != nil {
				return err
			}
			now += n
		}
		if now != keys || since.IsZero() {
			keys, since = now, time.Now()
		}
		if time.Since(since) < time.Second {
			return fmt.Errorf("%v keys until %s ago", keys, time.Since(since))
		}
		return nil
	})
	if keys == 0 {
		t.Fatal("/metrics has no workqueue_adds_total")
	}
	return keys
}

// TestNineOfTenTriggersDeleted checks that Triggers that one command deletes receive no more events and no more attempts of
// earlier ones.
func TestNineOfTenTriggersDeleted(t *testing.T) {
	const failing = 3 // whose subscriber rejects every event
	ns := namespace()
	sink := harness.NewSink(t)
	at := func(i int) *harness.Subscriber { return sink.At(fmt.Sprintf("/%d", i)) }
	at(failing).AnswerCode(http.StatusServiceUnavailable)
	address := shared.broker(t, ns, "orders")
	shared.createTriggers(t, ns, "orders", 10, func(i int) string { return at(i).URL }, func(i int) []triggerOption {
		return []triggerOption{labelled("stays", fmt.Sprint(i == 9)), delivered(retries(1000, "PT0.2S"))}
	})
	first := numbered("first", "order", 100)
	mustPost(t, address, first...)
	for i := range 10 {
		if i == failing {
			continue
		}
		if err := at(i).AwaitAll(bounded(t), ids(first)); err != nil {
			t.Fatal(err)
		}
	}
	if err := shared.Knative.EventingV1().Triggers(ns).DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "stays=false"}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the broker has removed the Triggers", func() error {
		for i := range 9 {
			if _, found := lookup(t, shared, fmt.Sprintf(`knative_eventing_events_matched_total{kind="Trigger",name="trigger-%d",namespace=%q}`, i, ns)); found {
				return fmt.Errorf("trigger-%d has metrics", i)
			}
		}
		return nil
	})
	// Requests that were in flight when Triggers were removed may still arrive.
	requests := func() (n [9]int) {
		for i := range n {
			n[i] = at(i).Requests()
		}
		return n
	}
	probes, posted := requests(), 0
	var quiet time.Time
	harness.Eventually(t, "deleted Triggers get nothing for a second", func() error {
		mustPost(t, address, event{id: fmt.Sprintf("probe-%d", posted), kind: "order"})
		posted++
		if now := requests(); now != probes || quiet.IsZero() {
			probes, quiet = now, time.Now()
		}
		if since := time.Since(quiet); since < time.Second {
			return fmt.Errorf("their subscribers got %v requests, the last %s ago", probes, since)
		}
		return nil
	})
	last := numbered("last", "order", 100)
	mustPost(t, address, last...)
	// All events of the remaining Trigger.
	if err := at(9).Await(bounded(t), len(first)+posted+len(last)); err != nil {
		t.Fatal(err)
	}
	if now := requests(); now != probes {
		t.Errorf("subscribers of deleted Triggers got %v requests, then %v", probes, now)
	}
}

// TestBrokerRecreated checks that a Trigger is not ready without its Broker, and becomes ready once the Broker exists again
// (eventing Trigger Lifecycle-7 and -8).
func TestBrokerRecreated(t *testing.T) {
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	address := shared.broker(t, ns, "orders")
	shared.trigger(t, ns, "orders", "orders", subscriber.URL)
	mustPost(t, address, event{id: "first", kind: "order"})
	if err := subscriber.AwaitAll(bounded(t), []string{"first"}); err != nil {
		t.Fatal(err)
	}
	if err := shared.Knative.EventingV1().Brokers(ns).Delete(t.Context(), "orders", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	shared.triggerIs(t, ns, "orders", corev1.ConditionFalse, "BrokerDoesNotExist")
	harness.Eventually(t, "the deleted Broker's address is not found", func() error {
		a, err := post(t.Context(), address, event{id: "lost", kind: "order"})
		if err != nil {
			return err
		}
		if a.code != http.StatusNotFound {
			return fmt.Errorf("an event got %d %s", a.code, a.body)
		}
		return nil
	})
	address = shared.broker(t, ns, "orders")
	shared.triggerIs(t, ns, "orders", corev1.ConditionTrue, "")
	// Ready promises that every event from now on arrives.
	later := numbered("later", "order", 10)
	mustPost(t, address, later...)
	if err := subscriber.AwaitAll(bounded(t), ids(later)); err != nil {
		t.Error(err)
	}
}
