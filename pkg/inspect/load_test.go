package inspect

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
)

// began is the time of the first sample. Replicas started before.
var began = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// replica returns the metrics of a replica that started seconds after the first sample.
func replica(name string, seconds int, requests, failures, milliseconds int64) servingv1beta1.ServiceMetricsReplica {
	return servingv1beta1.ServiceMetricsReplica{
		Name: name, StartTime: metav1.NewMicroTime(began.Add(time.Duration(seconds) * time.Second)),
		Requests: requests, Failures: failures, Responses: requests, DurationMilliseconds: milliseconds,
	}
}

// read returns a sample of the Service hello, seconds after the first one.
func read(seconds int, replicas ...servingv1beta1.ServiceMetricsReplica) *Sample {
	at := began.Add(time.Duration(seconds) * time.Second)
	s := NewSample(at)
	s.services = map[types.NamespacedName]*servingv1beta1.ServiceMetrics{}
	if len(replicas) > 0 {
		s.services[types.NamespacedName{Namespace: "shop", Name: "hello"}] = &servingv1beta1.ServiceMetrics{Timestamp: metav1.NewMicroTime(at), Replicas: replicas}
	}
	return s
}

// TestRequests computes rates and latency from two samples of several replicas.
func TestRequests(t *testing.T) {
	const old = -60
	load := func(requests, failures float64, latency *float64) RequestLoad {
		return RequestLoad{RequestsPerSecond: &requests, FailuresPerSecond: &failures, LatencyMilliseconds: latency}
	}
	first := read(0, replica("a", old, 10, 2, 1000), replica("b", old, 1000, 0, 5000))
	for name, tt := range map[string]struct {
		from, to *Sample
		want     RequestLoad
	}{
		"load":            {first, read(2, replica("a", old, 30, 6, 2000), replica("b", old, 1000, 0, 5000)), load(10, 2, ptr.To(50.0))},
		"no load":         {first, read(1, replica("a", old, 10, 2, 1000), replica("b", old, 1000, 0, 5000)), load(0, 0, nil)},
		"the first":       {read(0), read(2, replica("a", old, 4, 0, 40)), load(2, 0, ptr.To(10.0))},
		"a restart":       {first, read(2, replica("a", old, 12, 2, 1040), replica("b", 1, 6, 0, 120)), load(4, 0, ptr.To(20.0))},
		"a lost replica":  {first, read(2, replica("a", old, 14, 2, 1040)), load(2, 0, ptr.To(10.0))},
		"a found replica": {read(0, replica("a", old, 10, 2, 1000)), read(2, replica("a", old, 14, 2, 1040), replica("b", old, 1000, 0, 5000)), load(2, 0, ptr.To(10.0))},
		"one time":        {first, first, load(0, 0, nil)},
		"not read":        {NewSample(began), first, RequestLoad{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, (&Interval{tt.from, tt.to}).Requests("shop", "hello")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestEvents computes rates of events, and takes current values from the latest sample.
func TestEvents(t *testing.T) {
	at := func(seconds int, delivered, dropped, flying int64) *Sample {
		s := NewSample(began.Add(time.Duration(seconds) * time.Second))
		replica := eventingv1alpha1.EventMetricsReplica{Name: "a", Delivered: delivered, Dropped: dropped, InFlight: flying, OldestUndeliveredMilliseconds: 1500}
		s.events = map[eventsKey]*eventingv1alpha1.EventMetrics{{"Trigger", "shop", "hello"}: {Replicas: []eventingv1alpha1.EventMetricsReplica{replica, {Name: "b", InFlight: 1}}}}
		return s
	}
	rates := &Interval{at(0, 10, 1, 7), at(4, 30, 3, 1)}
	want := EventLoad{Namespace: "shop", Name: "hello", DeliveredPerSecond: 5, DroppedPerSecond: 0.5, InFlight: 2, OldestUndeliveredInSec: 1.5}
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
