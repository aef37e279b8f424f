package broker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// expectMetric fails unless a metric has just the values, by kind and name of the object.
func (w *fixture) expectMetric(registry metrics.KubeRegistry, name, kind string, want ...string) {
	w.Helper()
	families, err := registry.Gather()
	w.must(err)
	help := ""
	for _, family := range families {
		if family.GetName() == "knative_eventing_"+name {
			help = family.GetHelp()
		}
	}
	text := fmt.Sprintf("# HELP knative_eventing_%s %s\n# TYPE knative_eventing_%s %s\n", name, help, name, kind)
	for _, series := range want {
		var of, object, value string
		if _, err := fmt.Sscan(series, &of, &object, &value); err != nil {
			w.Fatal(err)
		}
		text += fmt.Sprintf("knative_eventing_%s{kind=%q,name=%q,namespace=\"default\"} %s\n", name, of, object, value)
	}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(text), "knative_eventing_"+name); err != nil {
		w.Error(err)
	}
}

func TestMetrics(t *testing.T) {
	run(t, func(w *fixture) {
		registry := metrics.NewKubeRegistry()
		w.must(registry.CustomRegister(w.Broker))
		w.set(
			trigger("a"),
			trigger("hung"),
			trigger("poison", withDelivery(linear(2, time.Second)), withDeadLetter),
			trigger("refused", func(c *eventing.Consumer) { c.Attributes = map[string]string{"id": "1"} }),
		)
		w.answer("hung", slow(stuck))
		w.answer("poison", always(500))
		w.answer("refused", always(400))
		w.accept(brokerKey, "1", "2")
		if err := w.Accept(w.Context(), brokerKey, []*event.Event{newEvent("3", ttl("1"))}); err == nil {
			t.Error("an event was accepted that went through too many Brokers")
		}
		w.after(30 * time.Second)
		w.expectMetric(registry, "events_accepted_total", "counter", "Broker b 2", "Channel c 0")
		w.expectMetric(registry, "events_matched_total", "counter",
			"Broker b 7", "Channel c 0", "Trigger a 2", "Trigger hung 2", "Trigger poison 2", "Trigger refused 1")
		w.expectMetric(registry, "events_looped_total", "counter",
			"Broker b 1", "Channel c 0", "Trigger a 0", "Trigger hung 0", "Trigger poison 0", "Trigger refused 0")
		w.expectMetric(registry, "events_delivered_total", "counter", "Trigger a 2", "Trigger hung 0", "Trigger poison 0", "Trigger refused 0")
		w.expectMetric(registry, "delivery_retries_total", "counter", "Trigger a 0", "Trigger hung 0", "Trigger poison 4", "Trigger refused 0")
		w.expectMetric(registry, "events_dead_lettered_total", "counter", "Trigger a 0", "Trigger hung 0", "Trigger poison 2", "Trigger refused 0")
		w.expectMetric(registry, "events_dropped_total", "counter", "Trigger a 0", "Trigger hung 0", "Trigger poison 0", "Trigger refused 1")
		w.expectMetric(registry, "deliveries_in_flight", "gauge", "Trigger a 0", "Trigger hung 2", "Trigger poison 0", "Trigger refused 0")
		w.expectMetric(registry, "oldest_undelivered_event_seconds", "gauge",
			"Broker b 30", "Channel c 0", "Trigger a 0", "Trigger hung 30", "Trigger poison 0", "Trigger refused 0")

		w.must(w.RemoveConsumer(w.Context(), trigger("hung").Key))
		w.expectMetric(registry, "deliveries_in_flight", "gauge", "Trigger a 0", "Trigger poison 0", "Trigger refused 0")
		w.must(w.RemoveStream(w.Context(), brokerKey))
		w.expectMetric(registry, "events_accepted_total", "counter", "Channel c 0")
	})
}

// The age of an event that waits for a retry counts from its acceptance, also over a restart.
func TestLagOfRetries(t *testing.T) {
	run(t, func(w *fixture) {
		w.set(trigger("a", withDelivery(linear(5, time.Minute))), trigger("o", ordered, withDelivery(linear(5, time.Minute))))
		w.answer("a", always(500))
		w.accept(brokerKey, "1")
		w.after(90 * time.Second)
		w.restart()
		w.after(5 * time.Second)
		registry := metrics.NewKubeRegistry()
		w.must(registry.CustomRegister(w.Broker))
		w.expectMetric(registry, "oldest_undelivered_event_seconds", "gauge", "Broker b 95", "Channel c 0", "Trigger a 95", "Trigger o 0")
	})
}
