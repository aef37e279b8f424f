package app

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/autoscaler"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// TestColdStartPhases covers the phases of cold starts. A step that was not observed, or that a backend took before the request was
// received, is part of the next phase.
func TestColdStartPhases(t *testing.T) {
	at := func(milliseconds int) time.Time { return time.UnixMilli(1_000_000 + int64(milliseconds)) }
	for name, test := range map[string]struct {
		cold    autoscaler.ColdStart
		outcome string
		phases  []servingv1.ColdStartPhase
		total   int64
	}{
		"waiting": {cold: autoscaler.ColdStart{Received: at(0)}, outcome: "Waiting"},
		"a Pod": {
			cold: autoscaler.ColdStart{
				Received: at(0), Scaled: at(5), Created: at(20), Scheduled: at(30), Started: at(930), Ready: at(980), Granted: at(981), Responded: at(1000),
			},
			outcome: "Responded",
			phases: []servingv1.ColdStartPhase{
				{Name: "Scaled", Milliseconds: 5}, {Name: "Created", Milliseconds: 15}, {Name: "Scheduled", Milliseconds: 10}, {Name: "Started", Milliseconds: 900},
				{Name: "Ready", Milliseconds: 50}, {Name: "Forwarded", Milliseconds: 1}, {Name: "Responded", Milliseconds: 19},
			},
			total: 1000,
		},
		"a backend that was already starting": {
			cold:    autoscaler.ColdStart{Received: at(0), Scaled: at(-90), Created: at(-80), Scheduled: at(-70), Started: at(10), Ready: at(30), Granted: at(30)},
			outcome: "Forwarded",
			phases:  []servingv1.ColdStartPhase{{Name: "Started", Milliseconds: 10}, {Name: "Ready", Milliseconds: 20}, {Name: "Forwarded"}},
			total:   30,
		},
		"a scale that was observed late": {
			cold:    autoscaler.ColdStart{Received: at(0), Scaled: at(9), Created: at(7)},
			outcome: "Waiting",
			phases:  []servingv1.ColdStartPhase{{Name: "Scaled", Milliseconds: 7}, {Name: "Created"}},
			total:   7,
		},
		"canceled": {
			cold:    autoscaler.ColdStart{Received: at(0), Canceled: at(7)},
			outcome: "Canceled",
			phases:  []servingv1.ColdStartPhase{{Name: "Canceled", Milliseconds: 7}},
			total:   7,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := coldStartOf(&test.cold)
			if got.Outcome != test.outcome || got.TotalMilliseconds != test.total {
				t.Errorf("outcome %s, total %d, want %s, %d", got.Outcome, got.TotalMilliseconds, test.outcome, test.total)
			}
			if diff := cmp.Diff(test.phases, got.Phases); diff != "" {
				t.Errorf("phases (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExplanationOf checks that averages keep three decimal places, and durations are in seconds.
func TestExplanationOf(t *testing.T) {
	e := explanationOf(&autoscaler.Explanation{
		Stable: 12.3456, Panic: 1e6, Target: 7, Capacity: 10, RPS: true, StableWindow: time.Minute, PanicWindow: 6 * time.Second, Retention: 1500 * time.Millisecond,
	})
	l := e.Load
	if l.StableAverage.String() != "12346m" || l.PanicAverage.String() != "1M" || l.Target.String() != "7" || l.Metric != "rps" || l.StableWindowSeconds != 60 || l.PanicWindowSeconds != 6 {
		t.Errorf("%+v", l)
	}
	if e.Limits.ScaleToZeroPodRetentionPeriodSeconds != 2 {
		t.Errorf("%+v", e.Limits)
	}
}

// unreachable is a transport to replicas that do not answer.
type unreachable struct{}

func (unreachable) RoundTrip(r *http.Request) (*http.Response, error) {
	return nil, errors.New("dial " + r.URL.Host + ": connection refused")
}

// TestExplainUnavailable checks the errors for users while nothing can explain a scale: they do not disclose addresses.
func TestExplainUnavailable(t *testing.T) {
	leads := true
	loop := autoscaler.New(autoscaler.Options{Leading: func() bool { return leads }, Clock: clock.RealClock{}})
	led, elected := membership.Member{Name: "b", Address: "192.0.2.2:8444"}, true
	with := func(loop *autoscaler.Loop) *explainer {
		return &explainer{autoscaler: loop, leader: func() (membership.Member, bool) { return led, elected }, transport: unreachable{}}
	}
	check := func(what string, e *explainer, want error) {
		t.Helper()
		if _, err := e.Explain(t.Context(), types.NamespacedName{Namespace: "default", Name: "r"}, "uid"); !errors.Is(err, want) || strings.Contains(err.Error(), "192.0.2") {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	check("this replica decides, and does not know the Revision", with(loop), errNotDecided)
	check("a single replica does not know the Revision", newExplainer(autoscaler.New(autoscaler.Options{Clock: clock.RealClock{}}), nil), errNotDecided)
	leads = false
	check("another one decides, and does not answer", with(loop), errDecider)
	check("others run the autoscaler", with(nil), errDecider)
	elected = false
	check("nothing decides", with(loop), errUndecided)
}
