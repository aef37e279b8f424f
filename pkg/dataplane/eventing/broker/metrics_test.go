package broker

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// expectMetric fails unless a metric has exactly the values, by kind and name of the object.
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

// expectMetricOf fails unless the object of a name has the value of a metric, or none if want is "".
func (w *fixture) expectMetricOf(registry metrics.KubeRegistry, name, object, want string) {
	w.Helper()
	families, err := registry.Gather()
	w.must(err)
	have := ""
	for _, family := range families {
		if family.GetName() != "knative_eventing_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["name"] == object {
				have = fmt.Sprint(labels["kind"], " ", object, " ", m.GetCounter().GetValue()+m.GetGauge().GetValue())
			}
		}
	}
	w.expect(name+" of "+object, have, want)
}

// expectDispatched fails unless Knative's metric has the number of attempts for a destination with a status code.
func (w *fixture) expectDispatched(registry metrics.KubeRegistry, destination, code string, want uint64) {
	w.Helper()
	families, err := registry.Gather()
	w.must(err)
	have := uint64(0)
	for _, family := range families {
		if family.GetName() != dispatchName {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["messaging_destination_name"] != destination || labels["http_response_status_code"] != code {
				continue
			}
			have += m.GetHistogram().GetSampleCount()
			w.expect("stream of "+destination, labels["kn_broker_namespace"]+"/"+labels["kn_broker_name"]+labels["kn_channel_name"], "default/b")
		}
	}
	w.expect("attempts for "+destination, fmt.Sprint(have), fmt.Sprint(want))
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

		w.expectDispatched(registry, "trigger:poison.default", "500", 6)
		w.expectDispatched(registry, "trigger:refused.default", "400", 1)
		w.expectDispatched(registry, "trigger:hung.default", "", 0)

		w.must(w.RemoveConsumer(w.Context(), trigger("hung").Key))
		w.expectMetric(registry, "deliveries_in_flight", "gauge", "Trigger a 0", "Trigger poison 0", "Trigger refused 0")
		w.must(w.RemoveStream(w.Context(), brokerKey))
		w.expectMetric(registry, "events_accepted_total", "counter", "Channel c 0")
	})
}

// The counters of an object remain while another replica owns it, continue when it returns, and end with the object.
func TestCountersOfFormerOwner(t *testing.T) {
	install(t, []string{"a", "b"}, func(i *installation) {
		n := owned(t, "b", "a", "b")
		consumer := trigger(fmt.Sprint("t", n))
		i.answer(consumer.Key.Name, always(400))
		registry := metrics.NewKubeRegistry()
		i.must(registry.CustomRegister(i.replicas["a"].broker))
		broker, dropped := "Broker "+streamKey(n).Name+" ", "Trigger "+consumer.Key.Name+" "
		expect := func(accepted, drops string, gauges bool) {
			t.Helper()
			i.expectMetricOf(registry, "events_accepted_total", streamKey(n).Name, accepted)
			i.expectMetricOf(registry, "events_dropped_total", consumer.Key.Name, drops)
			inFlight := ""
			if gauges {
				inFlight = dropped + "0"
			}
			i.expectMetricOf(registry, "deliveries_in_flight", consumer.Key.Name, inFlight)
		}
		expect("", "", false)
		i.see([]string{"a"}, "a")
		i.after(0)
		i.expectPost("a", n, "1", http.StatusAccepted)
		i.after(time.Second)
		expect(broker+"1", dropped+"1", true)

		i.see([]string{"a"}, "a", "b")
		i.after(time.Minute)
		expect(broker+"1", dropped+"1", false)

		i.see([]string{"a"}, "a")
		i.after(time.Minute)
		expect(broker+"1", dropped+"1", true)
		i.expectPost("a", n, "2", http.StatusAccepted)
		i.after(time.Second)
		expect(broker+"2", dropped+"2", true)

		i.see([]string{"a"}, "a", "b")
		i.after(time.Minute)
		a := i.replicas["a"].shards
		i.must(a.RemoveConsumer(i.Context(), consumer.Key))
		expect(broker+"2", "", false)
		i.must(a.RemoveStream(i.Context(), streamKey(n)))
		expect("", "", false)

		// Objects of the same names start at zero.
		i.must(a.SetStream(i.Context(), eventing.Stream{Key: streamKey(n), UID: "another"}))
		i.see([]string{"a"}, "a")
		i.after(time.Minute)
		expect(broker+"0", "", false)
	})
}

// A Trigger whose Broker was replaced by another one of the same name keeps its counters.
func TestCountersOfAnotherBroker(t *testing.T) {
	run(t, func(w *fixture) {
		registry := metrics.NewKubeRegistry()
		w.must(registry.CustomRegister(w.Broker))
		c := trigger("a")
		w.set(c)
		w.accept(brokerKey, "1")
		w.after(time.Second)
		w.must(w.SetStream(w.Context(), eventing.Stream{Key: brokerKey, UID: "another"}))
		c.StreamUID = "another"
		w.set(c)
		w.expectMetric(registry, "events_delivered_total", "counter", "Trigger a 1")
		w.expectMetric(registry, "events_accepted_total", "counter", "Broker b 0", "Channel c 0")
		c.UID = "another"
		w.set(c)
		w.expectMetric(registry, "events_delivered_total", "counter", "Trigger a 0")
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
