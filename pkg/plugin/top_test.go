package plugin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
)

// scraped returns a sample with so many requests, of which failed got 503, with a total duration in seconds.
func scraped(t *testing.T, at time.Time, requests, failed int, seconds float64) *sample {
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

// TestMeasure computes rates and latency from two samples.
func TestMeasure(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first, second := scraped(t, begin, 10, 2, 1), scraped(t, begin.Add(2*time.Second), 30, 6, 2)
	for name, tt := range map[string]struct {
		rates *interval
		want  serviceLoad
	}{
		"load":     {&interval{first, second}, serviceLoad{RequestsPerSecond: ptr.To(10.0), FailuresPerSecond: ptr.To(2.0), LatencyMilliseconds: ptr.To(50.0)}},
		"no load":  {&interval{first, scraped(t, begin.Add(time.Second), 10, 2, 1)}, serviceLoad{RequestsPerSecond: ptr.To(0.0), FailuresPerSecond: ptr.To(0.0)}},
		"restart":  {&interval{second, scraped(t, begin.Add(3*time.Second), 4, 0, 1)}, serviceLoad{RequestsPerSecond: ptr.To(4.0), FailuresPerSecond: ptr.To(0.0), LatencyMilliseconds: ptr.To(250.0)}},
		"one time": {&interval{first, first}, serviceLoad{RequestsPerSecond: ptr.To(0.0), FailuresPerSecond: ptr.To(0.0)}},
	} {
		t.Run(name, func(t *testing.T) {
			load := serviceLoad{Namespace: "shop", Name: "hello"}
			load.measure(tt.rates)
			tt.want.Namespace, tt.want.Name = "shop", "hello"
			if diff := cmp.Diff(tt.want, load); diff != "" {
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

// TestTopRows prints a row for each object, or for each Revision.
func TestTopRows(t *testing.T) {
	load := &measurements{Services: []serviceLoad{
		{Namespace: "shop", Name: "hello", RequestsPerSecond: ptr.To(10.25), FailuresPerSecond: ptr.To(0.0), LatencyMilliseconds: ptr.To(12.34), Revisions: []revisionLoad{
			{Name: "hello-1", Ready: 1, Desired: 2, Metric: "concurrency", Average: "5", Waiting: 3}, {Name: "hello-2", Metric: "rps", Average: "0"},
		}},
		{Namespace: "shop", Name: "web", Revisions: []revisionLoad{{Name: "web-1", Unknown: "forbidden"}}},
		{Namespace: "shop", Name: "new"},
	}}
	events := &measurements{Events: []eventLoad{{Namespace: "shop", Name: "orders", AcceptedPerSecond: 2, MatchedPerSecond: 4, DeliveredPerSecond: 1.5, InFlight: 2, OldestUndeliveredInSec: 1.25}}}
	for name, tt := range map[string]struct {
		load             *measurements
		kind             *kind
		namespaces, wide bool
		want             [][]string
	}{
		"services": {load: load, kind: services, want: [][]string{
			{"NAME", "REQUESTS/S", "FAILURES/S", "LATENCY", "INSTANCES", "LOAD", "WAITING"},
			{"hello", "10.3", "0", "12.3ms", "1/2", "5 concurrency", "3"},
			{"web", "-", "-", "-", "-", "-", "-"},
			{"new", "-", "-", "-", "-", "-", "-"},
		}},
		"wide": {load: load, kind: services, namespaces: true, wide: true, want: [][]string{
			{"NAMESPACE", "NAME", "REQUESTS/S", "FAILURES/S", "LATENCY", "INSTANCES", "LOAD", "WAITING", "REVISION"},
			{"shop", "hello", "10.3", "0", "12.3ms", "1/2", "5 concurrency", "3", "hello-1"},
			{"shop", "hello", "10.3", "0", "12.3ms", "0/0", "0 rps", "0", "hello-2"},
			{"shop", "web", "-", "-", "-", "-", "-", "-", "web-1"},
			{"shop", "new", "-", "-", "-", "-", "-", "-", ""},
		}},
		"brokers": {load: events, kind: brokers, want: [][]string{{"NAME", "ACCEPTED/S", "MATCHED/S", "OLDEST"}, {"orders", "2", "4", "1.3s"}}},
		"triggers": {load: events, kind: triggers, want: [][]string{
			{"NAME", "MATCHED/S", "DELIVERED/S", "RETRIES/S", "DEAD LETTERS/S", "DROPPED/S", "IN FLIGHT", "OLDEST"}, {"orders", "4", "1.5", "0", "0", "0", "2", "1.3s"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.load.rows(tt.kind, tt.namespaces, tt.wide)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
