package inspect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
)

// scraped returns a sample with so many requests, of which failed got 503, with a total duration in seconds.
func scraped(t *testing.T, at time.Time, requests, failed int, seconds float64) *Sample {
	t.Helper()
	text := fmt.Sprintf(`
# TYPE knative_gateway_requests_total counter
knative_gateway_requests_total{code="200",configuration="hello",namespace="shop",revision="hello-1",service="hello"} %d
knative_gateway_requests_total{code="503",configuration="hello",namespace="shop",revision="hello-2",service="hello"} %d
knative_gateway_requests_total{code="200",configuration="web",namespace="shop",revision="web-1",service="web"} 7
# TYPE knative_gateway_request_duration_seconds histogram
knative_gateway_request_duration_seconds_bucket{namespace="shop",service="hello",le="+Inf"} %d
knative_gateway_request_duration_seconds_sum{namespace="shop",service="hello"} %v
knative_gateway_request_duration_seconds_count{namespace="shop",service="hello"} %d
# TYPE go_goroutines gauge
go_goroutines 7
`, requests-failed, failed, requests, seconds, requests)
	s, err := parseSample(strings.NewReader(text), at)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRequests computes rates and latency from two samples.
func TestRequests(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first, second := scraped(t, begin, 10, 2, 1), scraped(t, begin.Add(2*time.Second), 30, 6, 2)
	for name, tt := range map[string]struct {
		rates *Interval
		want  RequestLoad
	}{
		"load":     {&Interval{first, second}, RequestLoad{RequestsPerSecond: ptr.To(10.0), FailuresPerSecond: ptr.To(2.0), LatencyMilliseconds: ptr.To(50.0)}},
		"no load":  {&Interval{first, scraped(t, begin.Add(time.Second), 10, 2, 1)}, RequestLoad{RequestsPerSecond: ptr.To(0.0), FailuresPerSecond: ptr.To(0.0)}},
		"restart":  {&Interval{second, scraped(t, begin.Add(3*time.Second), 4, 0, 1)}, RequestLoad{RequestsPerSecond: ptr.To(4.0), FailuresPerSecond: ptr.To(0.0), LatencyMilliseconds: ptr.To(250.0)}},
		"one time": {&Interval{first, first}, RequestLoad{RequestsPerSecond: ptr.To(0.0), FailuresPerSecond: ptr.To(0.0)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.rates.Requests("shop", "hello")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
	if _, err := parseSample(strings.NewReader("# TYPE a counter\na{"), begin); err == nil {
		t.Error("no error for an invalid sample")
	}
	if s, err := parseSample(strings.NewReader("# TYPE go_goroutines gauge\ngo_goroutines 7\n"), begin); err != nil || len(s.families) != 0 {
		t.Errorf("the metrics of another server are %v, %v", s, err)
	}
}

// TestEvents computes rates of events, and takes current values from the latest sample.
func TestEvents(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds, delivered, dropped, flying int) *Sample {
		s, err := parseSample(strings.NewReader(fmt.Sprintf(`
# TYPE knative_eventing_events_delivered_total counter
knative_eventing_events_delivered_total{kind="Trigger",name="hello",namespace="shop"} %d
knative_eventing_events_delivered_total{kind="Trigger",name="hello",namespace="other"} 9
# TYPE knative_eventing_events_dropped_total counter
knative_eventing_events_dropped_total{kind="Trigger",name="hello",namespace="shop"} %d
# TYPE knative_eventing_deliveries_in_flight gauge
knative_eventing_deliveries_in_flight{kind="Trigger",name="hello",namespace="shop"} %d
`, delivered, dropped, flying)), begin.Add(time.Duration(seconds)*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	rates := &Interval{at(0, 10, 1, 7), at(4, 30, 3, 2)}
	want := EventLoad{Namespace: "shop", Name: "hello", DeliveredPerSecond: 5, DroppedPerSecond: 0.5, InFlight: 2}
	if diff := cmp.Diff(want, rates.Events("Trigger", "shop", "hello")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if load := rates.Events("Trigger", "shop", "none").String(); load != "no events" {
		t.Errorf("without events: %s", load)
	}
	if load := want.String(); load != "5 delivered/s, 0.5 dropped/s, 2 in flight" {
		t.Errorf("with events: %s", load)
	}
}
