package eventing

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// filtering sets the filters of a Trigger.
func filtering(filters ...eventingv1.SubscriptionsAPIFilter) func(*eventingv1.Trigger) {
	return func(t *eventingv1.Trigger) { t.Spec.Filters = filters }
}

// TestMatch answers whether an event passes the filters of a Trigger, for events in all forms, as the broker decides (eventing TriggerFilter).
func TestMatch(t *testing.T) {
	ns, sink := namespace(), harness.NewSink(t)
	all, bill := sink.At("/all"), sink.At("/bill")
	orders := shared.broker(t, ns, "orders")
	shared.trigger(t, ns, "orders", "all", all.URL)
	shared.trigger(t, ns, "orders", "bill", bill.URL, filtering(
		eventingv1.SubscriptionsAPIFilter{Prefix: map[string]string{"type": "order."}}, eventingv1.SubscriptionsAPIFilter{CESQL: "EXISTS amount AND amount > 5"}))
	path := "/apis/eventing.knative.dev/v1/namespaces/" + ns + "/triggers/bill/match"
	kubectl := harness.NewKubectl(t, shared.Kubeconfig, ns)
	ask := func(input string) *eventingv1.TriggerMatch {
		t.Helper()
		match := &eventingv1.TriggerMatch{}
		if err := json.Unmarshal([]byte(kubectl.Must(t, input, "create", "--raw", path, "-f", "-")), match); err != nil {
			t.Fatal(err)
		}
		return match
	}
	const passing, failing = `{"specversion":"1.0","id":"1","source":"/test","type":"order.new","amount":7,"data":{"a":1}}`, `{"specversion":"1.0","id":"2","source":"/test","type":"order.new"}`
	for _, form := range []string{"%s", `{"apiVersion":"eventing.knative.dev/v1","kind":"TriggerMatch","spec":{"event":%s}}`} {
		if got := ask(fmt.Sprintf(form, passing)); !got.Status.Matched || len(got.Status.Filters) != 2 || got.Kind != "TriggerMatch" || got.Name != "bill" {
			t.Errorf("%s: %+v", form, got)
		}
		got := ask(fmt.Sprintf(form, failing))
		if want := "spec.filters[1].cesql is not true: EXISTS amount AND amount > 5"; got.Status.Matched || got.Status.Reason != want || got.Status.Filters[0].Result != "Passed" {
			t.Errorf("%s: %+v", form, got)
		}
	}
	mustPost(t, orders, event{id: "1", kind: "order.new", extensions: map[string]string{"amount": "7"}}, event{id: "2", kind: "order.new"})
	if err := all.AwaitAll(bounded(t), []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	if err := bill.AwaitAll(bounded(t), []string{"1"}); err != nil {
		t.Fatal(err)
	}
	if got := bill.Received(); got["2"] > 0 {
		t.Errorf("received %v", got)
	}

	send := func(path, accept, body string, header http.Header) (int, string) {
		t.Helper()
		response := shared.Do(t, harness.Request{Method: http.MethodPost, Path: path, Body: body, Accept: accept, Header: header})
		return response.Code, string(response.Body)
	}
	binary := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/test"}, "Ce-Type": {"order.new"}, "Ce-Amount": {"9"}, "Content-Type": {"text/plain"}}
	code, body := send(path, "application/json;as=Table;v=v1;g=meta.k8s.io", "data", binary)
	var table metav1.Table
	if err := json.Unmarshal([]byte(body), &table); err != nil || code != http.StatusCreated || len(table.Rows) != 3 || !slices.Equal(table.Rows[0].Cells, []any{"Trigger " + ns + "/bill", "Passed", ""}) {
		t.Errorf("got %d %s, %v", code, body, err)
	}
	for name, test := range map[string]struct {
		mediaType, body string
		code            int
		want            string
	}{
		"attribute": {"application/cloudevents+json", `{"specversion":"1.0","id":"1","source":"/test"}`, 400, "attribute 'type' must be given"},
		"raw":       {"application/json", `{"specversion":"1.0","id":"1","source":"/test"}`, 422, "spec.event: Invalid value: is not a CloudEvent: attribute 'type' must be given"},
		"batch":     {"application/cloudevents-batch+json", "[" + passing + "," + failing + "]", 400, "must be one event, not a batch of 2"},
		"empty":     {"application/json", `{"kind":"TriggerMatch","apiVersion":"eventing.knative.dev/v1"}`, 422, "spec.event: Required value"},
		"malformed": {"application/cloudevents+json", `{`, 400, "is not a CloudEvent"},
		"unknown":   {"application/json", `{"kind":"TriggerMatch","apiVersion":"eventing.knative.dev/v1","spec":{"event":` + passing + `,"evnt":1}}`, 400, `unknown field \"spec.evnt\"`},
		"large":     {"application/cloudevents+json", strings.Repeat("x", 4<<20), 413, "limit is"},
	} {
		if code, body := send(path+"?fieldValidation=Strict", "application/json", test.body, http.Header{"Content-Type": {test.mediaType}}); code != test.code || !strings.Contains(body, test.want) {
			t.Errorf("%s: got %d %s, want %d %s", name, code, body, test.code, test.want)
		}
	}
	if code, body := send(strings.Replace(path, "bill", "none", 1), "application/json", passing, http.Header{}); code != http.StatusNotFound {
		t.Errorf("without the Trigger: %d %s", code, body)
	}
}

// TestUnmatchedWarning warns on create and change of a Trigger that none of the last events would match, as long as the server knows that.
func TestUnmatchedWarning(t *testing.T) {
	ns := namespace()
	kubectl := harness.NewKubectl(t, shared.Kubeconfig, ns)
	orders := shared.broker(t, ns, "orders")
	manifest := func(kind, label string) string {
		return fmt.Sprintf(`{"apiVersion":"eventing.knative.dev/v1","kind":"Trigger","metadata":{"name":"bill","labels":{"a":%q}},"spec":{"broker":"orders",
			"filter":{"attributes":{"type":%q}},"subscriber":{"uri":"http://sink.example.com"}}}`, label, kind)
	}
	warnings := func(input string, args ...string) string {
		t.Helper()
		result := kubectl.Run(t, input, append(args, "-f", "-")...)
		if result.Code != 0 {
			t.Fatal(result.Stderr)
		}
		return strings.TrimSpace(result.Stderr)
	}
	if got := warnings(manifest("none", ""), "create", "--dry-run=server"); got != "" {
		t.Errorf("without events: %q", got)
	}
	mustPost(t, orders, numbered("e", "order", 5)...)
	const want = "Warning: spec.filter: 0 of the last 5 events of the Broker 'orders' would match"
	harness.Eventually(t, "the server knows the last events", func() error {
		if got := warnings(manifest("none", ""), "create", "--dry-run=server"); got != want {
			return fmt.Errorf("warned of %q", got)
		}
		return nil
	})
	if got := warnings(manifest("order", ""), "create"); got != "" {
		t.Errorf("matching: %q", got)
	}
	harness.Eventually(t, "a change of the filter causes a warning", func() error {
		if got := warnings(manifest("none", ""), "apply", "--server-side", "--force-conflicts", "--dry-run=server"); got != want {
			return fmt.Errorf("warned of %q", got)
		}
		return nil
	})
	if got := warnings(manifest("none", ""), "apply", "--server-side", "--force-conflicts"); got != want && got != "" {
		t.Errorf("changed: %q", got)
	}
	if got := warnings(manifest("none", "x"), "apply", "--server-side", "--force-conflicts"); got != "" {
		t.Errorf("unchanged filter: %q", got)
	}
}
