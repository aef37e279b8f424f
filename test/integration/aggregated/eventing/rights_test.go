package eventing

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// right returns the permission for a subresource of Eventing.
func right(resource, verb string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{eventingv1.GroupName}, Resources: []string{resource}, Verbs: []string{verb}}
}

// awaitCode waits until a request of a user gets a status.
func awaitCode(t *testing.T, user string, request harness.Request, code int, text string) {
	t.Helper()
	client := host.Admin.As(t, user)
	harness.Eventually(t, fmt.Sprintf("%s gets %d for %s", user, code, request.Path), func() error {
		r, err := client.Send(t.Context(), request)
		if err != nil {
			return err
		}
		if r.Code != code || !strings.Contains(string(r.Body), text) {
			return fmt.Errorf("got %d %s", r.Code, r.Body)
		}
		return nil
	})
}

// TestTailRights shows events live to users with the right brokers/tail only, and their data to those with brokers/data too.
func TestTailRights(t *testing.T) {
	ns := host.Namespace(t, "tail", nil)
	referrers(t, ns)
	addresses(t, ns)
	const reader, auditor, stranger = "tail-reader", "tail-auditor", "tail-stranger"
	allow(t, ns, reader, right("brokers/tail", "get"))
	allow(t, ns, auditor, right("brokers/tail", "get"), right("brokers/data", "get"))
	allow(t, ns, stranger, right("brokers", "get"), right("brokers/data", "get"), right("brokers/trace", "get"))
	path := "/apis/eventing.knative.dev/v1/namespaces/" + ns + "/brokers/parent/tail"
	awaitCode(t, reader, harness.Request{Method: http.MethodGet, Path: path + "?data=true"}, http.StatusForbidden, "parameter 'data' needs the permission to get brokers/data")
	awaitCode(t, stranger, harness.Request{Method: http.MethodGet, Path: path}, http.StatusForbidden, "brokers/tail")
	for user, query := range map[string]string{reader: "", auditor: "?data=true"} {
		harness.Eventually(t, "events are shown to "+user, func() error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			stream, err := host.Admin.As(t, user).Knative.EventingV1().RESTClient().Get().RequestURI(path + query).Stream(ctx)
			if err != nil {
				return err
			}
			defer stream.Close()
			start := make([]byte, len(`{"startedAt":`))
			if _, err := stream.Read(start); err != nil || string(start) != `{"startedAt":` {
				return fmt.Errorf("read %q, %w", start, err)
			}
			return nil
		})
	}
}

// TestMatchRight decides about events for users with the right triggers/match only.
func TestMatchRight(t *testing.T) {
	ns := host.Namespace(t, "match", nil)
	trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: "bill"}, Spec: eventingv1.TriggerSpec{Broker: "orders", Subscriber: duckv1.Destination{URI: "http://sink.example.com"}}}
	if _, err := host.Admin.Knative.EventingV1().Triggers(ns).Create(t.Context(), trigger, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const developer, stranger = "match-developer", "match-stranger"
	allow(t, ns, developer, right("triggers/match", "create"))
	allow(t, ns, stranger, right("triggers", "create"), right("triggers", "get"))
	request := harness.Request{
		Method: http.MethodPost, Path: "/apis/eventing.knative.dev/v1/namespaces/" + ns + "/triggers/bill/match", ContentType: "application/cloudevents+json",
		Body: `{"specversion":"1.0","id":"1","source":"/","type":"t"}`,
	}
	awaitCode(t, developer, request, http.StatusCreated, `"matched":true`)
	awaitCode(t, stranger, request, http.StatusForbidden, "triggers/match")
}

// TestRedriveRight delivers dead letters again for users with the right triggers/redrive only. No other right creates EventRuns.
func TestRedriveRight(t *testing.T) {
	ns := host.Namespace(t, "redrive", nil)
	trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: "bill"}, Spec: eventingv1.TriggerSpec{Broker: "orders", Subscriber: duckv1.Destination{URI: "http://sink.example.com"}}}
	if _, err := host.Admin.Knative.EventingV1().Triggers(ns).Create(t.Context(), trigger, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const operator, stranger = "redrive-operator", "redrive-stranger"
	allow(t, ns, operator, right("triggers/redrive", "create"))
	allow(t, ns, stranger, right("triggers", "create"), right("triggers", "update"), right("eventruns", "create"))
	redrive := harness.Request{Method: http.MethodPost, Path: "/apis/eventing.knative.dev/v1/namespaces/" + ns + "/triggers/bill/redrive", Body: "{}"}
	create := harness.Request{
		Method: http.MethodPost, Path: "/apis/eventing.knative.dev/v1alpha1/namespaces/" + ns + "/eventruns",
		Body: `{"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "EventRun", "metadata": {"name": "a"}, "spec": {"target": {"kind": "Trigger", "name": "bill"}, "redrive": {}}}`,
	}
	awaitCode(t, stranger, redrive, http.StatusForbidden, "triggers/redrive")
	awaitCode(t, stranger, create, http.StatusForbidden, "subresource redrive")
	awaitCode(t, operator, redrive, http.StatusCreated, `"kind":"EventRun"`)
}

// TestReplayRight replays archived events for users with the right brokers/replay only. A Broker without an archive is a conflict for them.
func TestReplayRight(t *testing.T) {
	ns := host.Namespace(t, "replay", nil)
	if _, err := host.Admin.Knative.EventingV1().Brokers(ns).Create(t.Context(), &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: "orders"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const operator, stranger = "replay-operator", "replay-stranger"
	allow(t, ns, operator, right("brokers/replay", "create"))
	allow(t, ns, stranger, right("brokers", "create"), right("brokers", "update"), right("triggers/redrive", "create"), right("eventruns", "create"))
	replay := harness.Request{Method: http.MethodPost, Path: "/apis/eventing.knative.dev/v1/namespaces/" + ns + "/brokers/orders/replay", Body: "{}"}
	awaitCode(t, stranger, replay, http.StatusForbidden, "brokers/replay")
	awaitCode(t, operator, replay, http.StatusConflict, "archive-retention")
}

// TestObjectMetricsRight shows the numbers of events of a namespace to users with the right eventmetrics there.
func TestObjectMetricsRight(t *testing.T) {
	ns, other := host.Namespace(t, "metrics", nil), host.Namespace(t, "metrics-other", nil)
	for _, each := range []string{ns, other} {
		referrers(t, each)
		broker, _ := addresses(t, each)
		post(t, broker, "1")
	}
	const reader, stranger = "metrics-reader", "metrics-stranger"
	allow(t, ns, reader, right("eventmetrics", "list"), right("eventmetrics", "get"))
	allow(t, other, stranger, right("eventmetrics", "list"))
	allow(t, ns, stranger, right("brokers", "list"))
	path := "/apis/eventing.knative.dev/v1alpha1/namespaces/" + ns + "/eventmetrics"
	awaitCode(t, reader, harness.Request{Method: http.MethodGet, Path: path + "/broker-parent"}, http.StatusOK, `"accepted":1,`)
	awaitCode(t, stranger, harness.Request{Method: http.MethodGet, Path: path}, http.StatusForbidden, "eventmetrics")
	awaitCode(t, reader, harness.Request{Method: http.MethodGet, Path: "/apis/eventing.knative.dev/v1alpha1/eventmetrics"}, http.StatusForbidden, "eventmetrics")
	r, err := host.Admin.As(t, reader).Send(t.Context(), harness.Request{Method: http.MethodGet, Path: path})
	if err != nil || r.Code != http.StatusOK || strings.Contains(string(r.Body), other) || !strings.Contains(string(r.Body), "broker-parent") {
		t.Errorf("the list is %d %s, %v", r.Code, r.Body, err)
	}
}
