package plugin

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// TestTopRows prints a row for each object, or for each Revision.
func TestTopRows(t *testing.T) {
	load := &measurements{Services: []serviceLoad{
		{Namespace: "shop", Name: "hello", RequestLoad: inspect.RequestLoad{RequestsPerSecond: ptr.To(10.25), FailuresPerSecond: ptr.To(0.0), LatencyMilliseconds: ptr.To(12.34)}, Revisions: []revisionLoad{
			{Name: "hello-1", Ready: 1, Desired: 2, Metric: "concurrency", Average: "5", Waiting: 3}, {Name: "hello-2", Metric: "rps", Average: "0"},
		}},
		{Namespace: "shop", Name: "web", Revisions: []revisionLoad{{Name: "web-1", Unknown: "forbidden"}}},
		{Namespace: "shop", Name: "new"},
	}}
	events := &measurements{Events: []inspect.EventLoad{{Namespace: "shop", Name: "orders", AcceptedPerSecond: 2, MatchedPerSecond: 4, DeliveredPerSecond: 1.5, InFlight: 2, OldestUndeliveredInSec: 1.25}}}
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
