package eventing

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// checkTrace covers who sees the delivery of event 1 of the Broker parent in shop by the Trigger it in billing: no user without the right to
// get traces in shop, and its Trigger only with the right to get that.
func checkTrace(t *testing.T, shop, billing string) {
	t.Helper()
	const reader, auditor, stranger = "trace-reader", "trace-auditor", "trace-stranger"
	right := rbacv1.PolicyRule{APIGroups: []string{eventingv1.GroupName}, Resources: []string{"brokers/trace"}, Verbs: []string{"get"}}
	triggers := rbacv1.PolicyRule{APIGroups: []string{eventingv1.GroupName}, Resources: []string{"triggers"}, Verbs: []string{"get"}}
	allow(t, shop, reader, right)
	allow(t, shop, auditor, right)
	allow(t, billing, auditor, triggers)
	allow(t, billing, stranger, right, triggers)
	path := "/apis/eventing.knative.dev/v1/namespaces/" + shop + "/brokers/parent/trace?id=1"
	for user, shown := range map[string]string{reader: "", auditor: "it"} {
		client := host.Admin.As(t, user)
		harness.Eventually(t, "the trace is shown to "+user, func() error {
			r, err := client.Send(t.Context(), harness.Request{Method: http.MethodGet, Path: path})
			if err != nil {
				return err
			}
			var found duckv1.EventTrace
			if err := json.Unmarshal(r.Body, &found); err != nil || r.Code != http.StatusOK || len(found.Events) != 1 {
				return fmt.Errorf("got %d %s: %w", r.Code, r.Body, err)
			}
			for _, d := range found.Events[0].Deliveries {
				if d.Consumer.Namespace != billing {
					continue
				}
				if d.Consumer.Name != shown || d.Hidden != (shown == "") || (len(d.Attempts) == 1) != (shown != "") {
					return fmt.Errorf("the delivery is %+v", d)
				}
				return nil
			}
			return fmt.Errorf("the deliveries are %+v", found.Events[0].Deliveries)
		})
	}
	if r := host.Admin.As(t, stranger).Do(t, harness.Request{Method: http.MethodGet, Path: path}); r.Code != http.StatusForbidden {
		t.Errorf("a user without the right got %d %s", r.Code, r.Body)
	}
}
