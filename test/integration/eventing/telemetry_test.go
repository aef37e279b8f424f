package eventing

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/otlptest"
)

// TestTelemetry checks the spans of an event by OTLP, from the trace of its sender to the subscriber, and the metric of its attempts.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	const ns, trace, parent = "shop", "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	collector, config := otlptest.Start(t), t.TempDir()
	observability := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: config-observability\ndata:\n  tracing-protocol: grpc\n  tracing-endpoint: " + collector.GRPC +
		"\n  metrics-protocol: http/protobuf\n  metrics-endpoint: " + collector.HTTP + "\n  metrics-export-interval: 1s\n"
	if err := os.WriteFile(filepath.Join(config, "observability.yaml"), []byte(observability), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, t.TempDir(), "--config-dir", config)
	subscriber := harness.NewSink(t).At("/")
	attempts := make(chan string, 2)
	subscriber.Answer(func(d *harness.Delivery) harness.Answer {
		attempts <- d.Header.Get("Traceparent")
		if len(attempts) == 1 {
			return harness.Answer{Code: http.StatusServiceUnavailable}
		}
		return harness.Answer{Code: http.StatusAccepted}
	})
	broker := s.broker(t, ns, "orders")
	s.trigger(t, ns, "orders", "all", subscriber.URL, delivered(retries(2, "PT0.01S")))
	m := binary("1", `{}`, map[string]string{"Content-Type": "application/json", "Traceparent": "00-" + trace + "-" + parent + "-01"})
	if a := m.send(t, broker); a.code != http.StatusAccepted {
		t.Fatalf("%d %s", a.code, a.body)
	}

	const accepting, sending = "broker:orders." + ns, "trigger:all." + ns
	var accepted otlptest.Span
	sent := map[string]otlptest.Span{}
	harness.Eventually(t, "spans of the event", func() error {
		for _, span := range collector.Spans(trace) {
			switch span.Name {
			case accepting:
				accepted = span
			case sending:
				sent[span.ID] = span
			}
		}
		if accepted.ID == "" || len(sent) != 2 {
			return fmt.Errorf("have %v", collector.Spans(trace))
		}
		return nil
	})
	if accepted.Parent != parent || accepted.Attributes["cloudevents.event_id"] != "1" || accepted.Attributes["messaging.destination.name"] != accepting {
		t.Errorf("the span of the acceptance is %+v", accepted)
	}
	codes := map[string]bool{}
	for _, span := range sent {
		codes[span.Attributes["http.response.status_code"]] = span.Failed
		if span.Parent != accepted.ID {
			t.Errorf("an attempt has the parent %s, want the acceptance %s", span.Parent, accepted.ID)
		}
	}
	if diff := cmp.Diff(map[string]bool{"503": true, "202": false}, codes); diff != "" {
		t.Errorf("failed attempts by status code (-want +got):\n%s", diff)
	}
	for range 2 {
		got := <-attempts
		parts := strings.Split(got, "-")
		if len(parts) != 4 || sent[parts[2]].ID == "" {
			t.Errorf("the subscriber got traceparent %q, want the span of an attempt", got)
		}
	}

	harness.Eventually(t, "metric of attempts", func() error {
		m, _ := collector.Metric("kn.eventing.dispatch.duration")
		got := map[string]float64{}
		for _, point := range m.Points {
			a := point.Attributes
			got[fmt.Sprint(a["kn.broker.namespace"], " ", a["kn.broker.name"], " ", a["messaging.destination.name"], " ", a["http.response.status_code"])] = point.Value
		}
		want := map[string]float64{"shop orders trigger:all.shop 202": 1, "shop orders trigger:all.shop 503": 1}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// TestCollector checks that a collector of OpenTelemetry receives the spans and metrics of events by both protocols.
func TestCollector(t *testing.T) {
	t.Parallel()
	const ns, trace = "shop", "4bf92f3577b34da6a3ce929d0e0e4736"
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			collector, config := harness.RunCollector(t), t.TempDir()
			observability := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-observability}\ndata: {tracing-protocol: PROTOCOL, tracing-endpoint: ENDPOINT," +
				" metrics-protocol: PROTOCOL, metrics-endpoint: ENDPOINT, metrics-export-interval: 1s}\n"
			observability = strings.NewReplacer("PROTOCOL", strconv.Quote(protocol), "ENDPOINT", strconv.Quote(collector.Endpoints[protocol])).Replace(observability)
			if err := os.WriteFile(filepath.Join(config, "observability.yaml"), []byte(observability), 0o600); err != nil {
				t.Fatal(err)
			}
			s := start(t, t.TempDir(), "--config-dir", config)
			broker := s.broker(t, ns, "orders")
			s.trigger(t, ns, "orders", "all", harness.NewSink(t).At("/").URL)
			m := binary("1", `{}`, map[string]string{"Content-Type": "application/json", "Traceparent": "00-" + trace + "-00f067aa0ba902b7-01"})
			if a := m.send(t, broker); a.code != http.StatusAccepted {
				t.Fatalf("%d %s", a.code, a.body)
			}
			collector.Await(t, trace, []string{"broker:orders." + ns, "trigger:all." + ns}, "kn.eventing.dispatch.duration")
		})
	}
}
