package plugin

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

func explanation() *servingv1.RevisionExplanation {
	return &servingv1.RevisionExplanation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hello-00001"}, DesiredReplicas: 2, ActualReplicas: 1, Reason: "StableLoad", Message: "The load needs 2.",
		Load: servingv1.RevisionLoad{
			Metric: "concurrency", StableAverage: resource.MustParse("120"), PanicAverage: resource.MustParse("130500m"), Target: resource.MustParse("70"), Capacity: resource.MustParse("100"),
			StableWindowSeconds: 60, PanicWindowSeconds: 6, Panicking: true, WaitingRequests: 3,
		},
		Limits: servingv1.RevisionScaleLimits{
			MinScale: 0, MaxScale: 5, MaxScaleLimit: 9, InitialScale: 1, ActivationScale: 1, ScaleToZero: true, ScaleToZeroPodRetentionPeriodSeconds: 30,
		},
		LastReplica: []servingv1.ScalingReason{{Reason: "StableWindow", Message: "There was load."}, {Reason: "Retention", Message: "30s."}},
		Activation:  &servingv1.RevisionActivation{ReceivedTime: microTime(1), Request: "GET hello/", Gateway: "gateway-1"},
		Decisions:   []servingv1.ScalingDecision{{DecidedTime: microTime(2), From: 0, To: 2, Reason: "RequestWaiting", Message: "Activated by GET hello/."}},
		ColdStarts: []servingv1.ColdStart{{
			ReceivedTime: microTime(1), Request: "GET hello/", Gateway: "gateway-1", Instance: "hello-1", Outcome: "Responded", TotalMilliseconds: 1200,
			Phases: []servingv1.ColdStartPhase{{Name: "Scaled", Milliseconds: 200}, {Name: "Responded", Milliseconds: 1000}},
		}},
		Decider: servingv1.RevisionDecider{Replica: "server-0", SinceTime: metav1.NewTime(microTime(0).Time)},
	}
}

// TestWriteExplanation prints each fact of an explanation.
func TestWriteExplanation(t *testing.T) {
	zero := &servingv1.RevisionExplanation{
		ObjectMeta: metav1.ObjectMeta{Name: "hello-00001"}, Reason: "NoRequests", Message: "No request.",
		Limits: servingv1.RevisionScaleLimits{MinScale: 1}, Decider: servingv1.RevisionDecider{SinceTime: metav1.NewTime(microTime(0).Time)},
	}
	for name, tt := range map[string]struct {
		explanation *servingv1.RevisionExplanation
		traffic     string
		wide        bool
		want        string
	}{
		"at zero": {explanation: zero, want: `
Revision hello-00001: 0 of 0 instances ready
  Reason:          NoRequests: No request.
  Limits:          at least 1, no maximum, never zero
  Decided since:   2026-01-02T03:04:05.000Z
`},
		"text": {explanation: explanation(), traffic: "100 % of Service hello", want: `
Revision hello-00001 (100 % of Service hello): 1 of 2 instances ready
  Reason:                StableLoad: The load needs 2.
  Load:                  concurrency 120 in 1m0s, 130.5 in 6s; one instance per 70, capacity 100; panicking; 3 requests wait
  Limits:                at least 0, at most 5, zero after 30s without demand
  Last instance stays:   StableWindow: There was load.
                         Retention: 30s.
  Activated by:          GET hello/ at 03:04:05.001 at replica gateway-1
  Decided since:         2026-01-02T03:04:05.000Z at replica server-0
  DECISION       INSTANCES   REASON           MESSAGE
  03:04:05.002   0 -> 2      RequestWaiting   Activated by GET hello/.
  COLD START     TOTAL   OUTCOME     PHASES                       REQUEST
  03:04:05.001   1.2s    Responded   Scaled 200ms, Responded 1s   GET hello/
`},
		"wide": {explanation: explanation(), wide: true, want: `
Revision hello-00001: 1 of 2 instances ready
  Reason:                StableLoad: The load needs 2.
  Load:                  concurrency 120 in 1m0s, 130.5 in 6s; one instance per 70, capacity 100; panicking; 3 requests wait
  Limits:                at least 0, at most 5, zero after 30s without demand, starts with 1, activates 1, falls after 0s, limit of the operator 9
  Last instance stays:   StableWindow: There was load.
                         Retention: 30s.
  Activated by:          GET hello/ at 2026-01-02T03:04:05.001Z at replica gateway-1
  Decided since:         2026-01-02T03:04:05.000Z at replica server-0
  DECISION                   INSTANCES   REASON           MESSAGE
  2026-01-02T03:04:05.002Z   0 -> 2      RequestWaiting   Activated by GET hello/.
  COLD START                 TOTAL   OUTCOME     PHASES                       REQUEST      INSTANCE   GATEWAY
  2026-01-02T03:04:05.001Z   1.2s    Responded   Scaled 200ms, Responded 1s   GET hello/   hello-1    gateway-1
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := writeExplanation(&out, tt.explanation, tt.traffic, tt.wide); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want[1:], out.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestTraffic describes the traffic of each Revision; the latest one may have none.
func TestTraffic(t *testing.T) {
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hello"}}
	service.Status.LatestCreatedRevisionName = "hello-3"
	service.Status.Traffic = []servingv1.TrafficTarget{
		{RevisionName: "hello-1", Percent: ptr.To[int64](90)}, {RevisionName: "hello-2", Percent: ptr.To[int64](10)}, {RevisionName: "hello-1", Tag: "old"},
	}
	if diff := cmp.Diff([]string{"hello-1", "hello-2", "hello-3"}, inspect.Routed(service)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for revision, want := range map[string]string{
		"hello-1": "90 % of Service hello, tag old", "hello-2": "10 % of Service hello", "hello-3": "0 % of Service hello",
	} {
		if got := traffic(service, revision); got != want {
			t.Errorf("traffic of %s: %q, want %q", revision, got, want)
		}
	}
}
