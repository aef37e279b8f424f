package serving

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// explain returns the explanation of a Revision's scale, from any replica of the API server.
func (s *space) explain(t testing.TB, revision string) *servingv1.RevisionExplanation {
	t.Helper()
	var e *servingv1.RevisionExplanation
	until(t, "the scale is explained", func() error {
		// Just after a change of the leader, it has not decided about the Revision yet.
		response := s.Admin.Do(t, harness.Request{Method: http.MethodGet, Path: harness.KindOf("Revision").Path(s.namespace, revision) + "/explain"})
		if response.Code != http.StatusOK {
			return fmt.Errorf("code %d: %s", response.Code, response.Body)
		}
		e = decoded[*servingv1.RevisionExplanation](t, string(response.Body))
		return nil
	})
	return e
}

// coldStart scales a Revision to zero, sends a request, and returns the explanation once its response is reported.
func (s *space) coldStart(t *testing.T, service *servingv1.Service) (e *servingv1.RevisionExplanation) {
	t.Helper()
	// A leader that is elected meanwhile does not know what happened before: the cold start is repeated then.
	for lost := true; lost; {
		lost = false
		s.untilZero(t, service)
		began := time.Now().Truncate(time.Microsecond)
		s.get(t, service.Status.URL+"/info?token=secret")
		until(t, "the cold start is explained", func() error {
			e = s.explain(t, service.Status.LatestReadyRevisionName)
			if lost = e.Decider.SinceTime.Add(time.Second).After(began); lost {
				return nil
			}
			if len(e.ColdStarts) == 0 || e.ColdStarts[0].Outcome != "Responded" || e.ColdStarts[0].ReceivedTime.Time.Before(began) {
				return fmt.Errorf("the cold starts are %+v, decided are %+v", e.ColdStarts, e.Decisions)
			}
			return nil
		})
	}
	return e
}

// activatedBy returns an error unless an explanation attributes the latest activation to a request.
func activatedBy(e *servingv1.RevisionExplanation, request string) error {
	if a := e.Activation; a == nil || a.Request != request || (a.Gateway == "") != (e.Decider.Replica == "") {
		return fmt.Errorf("activated by %+v, want %q: %+v", a, request, e)
	}
	if !slices.ContainsFunc(e.Decisions, func(d servingv1.ScalingDecision) bool {
		return d.From == 0 && d.To == 1 && d.Request == request && strings.Contains(d.Message, "Activated by "+request)
	}) {
		return fmt.Errorf("no decision names the request: %+v", e.Decisions)
	}
	return nil
}

// explainedStarts is the maximum number of cold starts of TestExplainScale: a leader that decides seconds after a request does not attribute its
// decision to it.
const explainedStarts = 3

// TestExplainScale checks that each replica explains the scale of a Revision on Pods: which request at a gateway activated it, the phases
// of the cold start, what keeps the last Pod, and why the Revision scaled to zero.
func TestExplainScale(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "explain", nil)
	service := s.deploy(t, s.app("hello", scaling("window", "6s")))
	revision := service.Status.LatestReadyRevisionName
	host := strings.TrimPrefix(service.Status.URL, "http://")
	request := "GET " + host + "/info"

	var e *servingv1.RevisionExplanation
	for number := 1; ; number++ {
		e = s.coldStart(t, service)
		err := activatedBy(e, request)
		if err == nil {
			break
		}
		if number == explainedStarts {
			t.Fatal(err)
		}
		t.Logf("cold start %d: %v", number, err)
	}
	cold, phases := e.ColdStarts[0], ""
	for _, phase := range cold.Phases {
		phases += phase.Name + " "
	}
	if want := "Created Scheduled Started Ready Forwarded Responded "; !strings.HasSuffix(phases, want) {
		t.Errorf("the phases are %q, want %q at their end", phases, want)
	}
	if cold.TotalMilliseconds <= 0 || !strings.HasPrefix(cold.Instance, revision+"-deployment-") {
		t.Errorf("%+v", cold)
	}

	s.untilZero(t, service)
	until(t, "the scale to zero is explained", func() error {
		if zero := s.explain(t, revision); zero.DesiredReplicas != 0 || zero.Reason != "NoRequests" || zero.LastReplica != nil || zero.Message != "No requests in the stable window of 6s." {
			return fmt.Errorf("%+v", zero)
		}
		return nil
	})
	// kube-apiserver sends each request to any replica.
	for range 20 {
		if other := s.explain(t, revision); other.Decider == e.Decider && (other.Activation == nil || other.Activation.Request != request) {
			t.Errorf("another answer has the activation %+v", other.Activation)
		}
	}
	until(t, "kubectl prints the reason", func() error {
		if got := s.kubectl.Run(t, "", "get", "revision", revision, "--subresource=explain"); !strings.Contains(got.Stdout, "NoRequests") {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}
