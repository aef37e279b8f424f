package serving

import (
	"fmt"
	"regexp"
	"testing"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestEvents checks that Events on the objects of a Service report its changes.
// It covers conventions Events-1.
func TestEvents(t *testing.T) {
	t.Parallel()
	ns := namespace()
	kubectl := harness.NewKubectl(t, shared.Kubeconfig, ns)
	shows := func(resource, name string, events ...string) {
		t.Helper()
		harness.Eventually(t, "the Events of "+resource+" "+name+" are shown", func() error {
			out := kubectl.Must(t, "", "describe", resource, name)
			for _, want := range events {
				if !regexp.MustCompile(`(?m)^  ` + want).MatchString(out) {
					return fmt.Errorf("no line matches %s in:\n%s", want, out)
				}
			}
			return nil
		})
	}
	shared.deploy(t, app(t, ns, "reported"))
	shows("ksvc", "reported", `Normal\s+Created\s.*Created Configuration "reported"`, `Normal\s+Created\s.*Created Route "reported"`, `Normal\s+Ready\s.*Became ready`)
	shows("cfg", "reported", `Normal\s+Created\s.*Created Revision "reported-00001"`)
	shows("rev", "reported-00001", `Normal\s+Ready\s`, `Normal\s+Scaled\s.*Scaled from 0 to 1 instances`)
	shows("rt", "reported", `Normal\s+TrafficChanged\s.*Requests go to reported-00001 \(100%\)`)

	shared.apply(t, app(t, ns, "reported", env("START_FAIL", "3:out of luck")))
	shared.until(t, ns, "reported", "has failed", func(s *servingv1.Service) error {
		return condition(s, &s.Status.Status, "Ready", "False", "RevisionFailed")
	})
	shows("rev", "reported-00002", `Warning\s+ExitCode3\s.*Container failed with: out of luck`)
	shows("ksvc", "reported", `Warning\s+RevisionFailed\s.*out of luck`)

	shared.deploy(t, app(t, ns, "reported", env("TARGET", "third"), traffic(latest(50), pinned("reported-00001", 50))))
	shows("rt", "reported", `Normal\s+TrafficChanged\s.*Requests go to reported-00003 \(50%\), reported-00001 \(50%\)`)
}
