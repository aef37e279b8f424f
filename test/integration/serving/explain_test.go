package serving

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// explain returns the explanation of the scale of a site's newest Revision.
func (s *site) explain(t testing.TB) *servingv1.RevisionExplanation {
	t.Helper()
	path := harness.KindOf("Revision").Path(s.namespace, s.revision(t).Name) + "/explain"
	var explanation *servingv1.RevisionExplanation
	harness.Eventually(t, "the autoscaler has decided about the Revision", func() (err error) {
		explanation, err = parsed[servingv1.RevisionExplanation](shared.Do(t, harness.Request{Method: http.MethodGet, Path: path}))
		return err
	})
	return explanation
}

// TestExplainScale checks that the subresource explain names the request that activated a Revision, what keeps its last instance, why it
// scaled to zero, and the phases of the cold start.
func TestExplainScale(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "explained", scaling("initial-scale", "0"), scaling("window", "6s"), scaling("max-scale", "5"))
	if e := s.explain(t); e.DesiredReplicas != 0 || e.Reason != "NoRequests" || e.Activation != nil || e.ColdStarts != nil {
		t.Errorf("before the first request: %+v", e)
	}
	s.mustGet(t, s.url+"/info?token=secret")
	want := "GET " + s.host + "/info"
	var active *servingv1.RevisionExplanation
	harness.Eventually(t, "the explanation has the complete cold start", func() error {
		if active = s.explain(t); len(active.ColdStarts) != 1 || active.ColdStarts[0].Outcome != "Responded" {
			return fmt.Errorf("the cold starts are %+v", active.ColdStarts)
		}
		return nil
	})
	if a := active.Activation; a == nil || a.Request != want || a.Gateway != "" {
		t.Errorf("activated by %+v, want %q", a, want)
	}
	cold := active.ColdStarts[0]
	var phases []string
	sum := int64(0)
	for _, phase := range cold.Phases {
		phases = append(phases, phase.Name)
		sum += phase.Milliseconds
	}
	if got, want := strings.Join(phases, " "), "Scaled Created Started Ready Forwarded Responded"; got != want || sum != cold.TotalMilliseconds {
		t.Errorf("phases %q of %d ms in all, want %q: %+v", got, sum, want, cold)
	}
	if cold.Request != want || cold.Instance == "" {
		t.Errorf("cold start %+v", cold)
	}
	if l := active.Limits; l.MaxScale != 5 || l.InitialScale != 0 || l.ActivationScale != 1 || !l.ScaleToZero {
		t.Errorf("limits %+v", l)
	}
	if l := active.Load; l.Metric != "concurrency" || l.Target.String() != "70" || l.Capacity.String() != "100" || l.StableWindowSeconds != 6 || l.PanicWindowSeconds != 1 {
		t.Errorf("load %+v", l)
	}
	first := active.Decisions[len(active.Decisions)-1]
	if first.From != 0 || first.To != 1 || first.Reason != "RequestWaiting" || first.Request != want || first.Message != "Activated by "+want+"." {
		t.Errorf("the first decision is %+v", first)
	}
	harness.Eventually(t, "the last instance is kept by the stable window", func() error {
		e := s.explain(t)
		kept := slices.ContainsFunc(e.LastReplica, func(r servingv1.ScalingReason) bool { return r.Reason == "StableWindow" })
		zero := len(e.Decisions) > 0 && e.Decisions[0].To == 0
		if !kept && !zero {
			return fmt.Errorf("%+v", e.LastReplica)
		}
		return nil
	})

	last := active
	harness.Eventually(t, "the Revision scales to zero", func() error {
		if last = s.explain(t); last.DesiredReplicas != 0 || last.Reason != "NoRequests" {
			return fmt.Errorf("%+v", last)
		}
		return nil
	})
	if last.Message != "No requests in the stable window of 6s." || last.LastReplica != nil {
		t.Errorf("at zero: %+v", last)
	}
	if d := last.Decisions[0]; d.From != 1 || d.To != 0 || d.Reason != "NoRequests" {
		t.Errorf("the last decision is %+v", d)
	}
	if last.Activation == nil || last.Activation.Request != want || len(last.ColdStarts) != 1 {
		t.Errorf("at zero the activation is %+v, the cold starts are %+v", last.Activation, last.ColdStarts)
	}
	if encoded, err := json.Marshal(last); err != nil || strings.Contains(string(encoded), "secret") {
		t.Errorf("the explanation has the query of a request (%v): %s", err, encoded)
	}

	// kubectl reads it as any subresource: as an object, and as a table.
	kubectl := harness.NewKubectl(t, shared.Kubeconfig, s.namespace)
	revision := s.revision(t).Name
	if got := kubectl.Must(t, "", "get", "revision", revision, "--subresource=explain", "-o", "jsonpath={.kind} {.metadata.name} {.activation.request}"); got != "RevisionExplanation "+revision+" "+want {
		t.Errorf("kubectl get --subresource=explain prints %q", got)
	}
	if got := kubectl.Must(t, "", "get", "revision", revision, "--subresource=explain"); !strings.Contains(got, "NoRequests") || !strings.Contains(got, "REASON") {
		t.Errorf("kubectl get --subresource=explain prints %q", got)
	}
	kubectl.MustFail(t, `revisions.serving.knative.dev "none" not found`, "", "get", "revision", "none", "--subresource=explain")
}
