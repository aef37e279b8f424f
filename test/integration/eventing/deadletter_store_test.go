package eventing

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

func deadLettersPath(namespace string) string {
	return "/apis/eventing.knative.dev/v1alpha1/namespaces/" + namespace + "/deadletters"
}

// deadLetters lists the dead letters of a namespace.
func (s *server) deadLetters(t testing.TB, namespace string, parameters url.Values) *eventingv1alpha1.DeadLetterList {
	t.Helper()
	r := s.Do(t, harness.Request{Path: deadLettersPath(namespace) + "?" + parameters.Encode()})
	list := &eventingv1alpha1.DeadLetterList{}
	if err := json.Unmarshal(r.Body, list); err != nil || r.Code != http.StatusOK {
		t.Fatalf("%v: %d %s", err, r.Code, r.Body)
	}
	return list
}

// awaitDeadLetters waits until a list has so many dead letters.
func (s *server) awaitDeadLetters(t testing.TB, namespace, field string, count int) *eventingv1alpha1.DeadLetterList {
	t.Helper()
	list := &eventingv1alpha1.DeadLetterList{}
	harness.Eventually(t, fmt.Sprintf("there are %d dead letters", count), func() error {
		parameters := url.Values{}
		if field != "" {
			parameters.Set("fieldSelector", field)
		}
		if list = s.deadLetters(t, namespace, parameters); len(list.Items) != count {
			return fmt.Errorf("there are %d", len(list.Items))
		}
		return nil
	})
	return list
}

// annotated sets an annotation of a Trigger.
func annotated(key, value string) triggerOption {
	return func(t *eventingv1.Trigger) { metav1.SetMetaDataAnnotation(&t.ObjectMeta, key, value) }
}

// TestDeadLetterStore keeps events that cannot be delivered: kubectl prints and deletes them, a trace names the store, and they survive that
// the server is killed.
func TestDeadLetterStore(t *testing.T) {
	ns, dir := namespace(), t.TempDir()
	s := start(t, dir)
	sink := harness.NewSink(t)
	failing := sink.At("/failing")
	failing.AnswerCode(http.StatusServiceUnavailable)
	orders, channel := s.broker(t, ns, "orders"), s.channel(t, ns, "orders")
	s.trigger(t, ns, "orders", "to-billing", failing.URL, ofType("order"), delivered(retries(1, "PT0.01S")))
	drops := s.broker(t, ns, "drops")
	s.trigger(t, ns, "drops", "dropping", failing.URL, delivered(retries(1, "PT0.01S")), annotated(duckv1.DeadLetterStoreAnnotationKey, "disabled"))
	s.subscribe(t, newSubscription(ns, "orders", "sub", to(uri(failing.URL)), with(retries(0, "PT0.01S"))))
	mustPost(t, orders, event{id: "1", kind: "order", data: `{"price":1.10}`}, event{id: "2", kind: "order", data: "\x00\xff"})
	mustPost(t, channel, event{id: "3", kind: "order"})
	mustPost(t, drops, event{id: "dropped", kind: "order"})
	s.awaitDeadLetters(t, ns, "", 3)
	harness.Eventually(t, "the event of a Trigger without the store is dropped", func() error {
		if dropped := metric(t, s, "knative_eventing_events_dropped_total", "Trigger", ns, "dropping"); dropped != 1 {
			return fmt.Errorf("%v were dropped", dropped)
		}
		return nil
	})
	s.awaitTrace(t, tracePath(ns, "orders", url.Values{"id": {"1"}}), []string{
		"1 1 at Broker orders",
		"1 to to-billing: DeadLettered the event is in the dead letter store", "1 to to-billing: Subscriber 1 503 next true", "1 to to-billing: Subscriber 2 503 next false",
		"1 to to-billing: DeadLetterStore 1 0 next false",
	})

	kubectl := harness.NewKubectl(t, s.Kubeconfig, ns)
	table := kubectl.Must(t, "", "get", "deadletters")
	for _, want := range []string{"NAME", "ID", "TYPE", "OBJECT", "SUBSCRIBER", "ATTEMPTS", "CODE", "AGE", "Trigger/to-billing", "Subscription/sub", failing.URL, "503"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table has no %q:\n%s", want, table)
		}
	}
	if out := kubectl.Must(t, "", "get", "deadletters", "-l", "eventing.knative.dev/trigger=to-billing", "-o", "name", "--chunk-size=1"); strings.Count(out, "\n") != 2 {
		t.Errorf("by label:\n%s", out)
	}
	if out := kubectl.Must(t, "", "get", "deadletters", "-A", "--field-selector", "stream.kind=Channel", "-o", "wide"); !strings.Contains(out, "Channel/orders") || strings.Contains(out, "Trigger/") {
		t.Errorf("by field:\n%s", out)
	}
	if out := kubectl.Must(t, "", "explain", "deadletters.event.dataBase64"); !strings.Contains(out, "base64") {
		t.Errorf("explain:\n%s", out)
	}
	text := s.awaitDeadLetters(t, ns, "event.id=1", 1).Items[0]
	yaml := kubectl.Must(t, "", "get", "deadletter", text.Name, "-o", "yaml")
	for _, want := range []string{`data: '{"price":1.10}'`, "attempts: 2", "lastCode: 503", "reason: SubscriberFailed", "name: to-billing", "type: order"} {
		if !strings.Contains(yaml, want) {
			t.Errorf("the YAML has no %q:\n%s", want, yaml)
		}
	}
	if binary := s.awaitDeadLetters(t, ns, "event.id=2", 1).Items[0]; string(binary.Event.DataBase64) != "\x00\xff" || binary.Event.Data != "" {
		t.Errorf("binary data %q, %q", binary.Event.DataBase64, binary.Event.Data)
	}

	s.Kill()
	if err := s.restart(); err != nil {
		t.Fatal(err)
	}
	kubectl = harness.NewKubectl(t, s.Kubeconfig, ns)
	if after := s.awaitDeadLetters(t, ns, "event.id=1", 1).Items[0]; after.UID != text.UID || after.Name != text.Name || after.Event.Data != text.Event.Data {
		t.Errorf("after a kill: %+v, before: %+v", after, text)
	}
	kubectl.Must(t, "", "delete", "deadletter", text.Name)
	kubectl.MustFail(t, "NotFound", "", "get", "deadletter", text.Name)
	kubectl.Must(t, "", "delete", "deadletters", "-l", "messaging.knative.dev/channel=orders")
	s.awaitDeadLetters(t, ns, "", 1)
	if r := s.Do(t, harness.Request{Method: http.MethodDelete, Path: deadLettersPath(ns)}); r.Code != http.StatusOK {
		t.Errorf("delete of the collection: %d %s", r.Code, r.Body)
	}
	s.awaitDeadLetters(t, ns, "", 0)

	// The dead letters of a deleted Trigger are not shown, also if another one has the same name.
	mustPost(t, orders, event{id: "4", kind: "order"})
	s.awaitDeadLetters(t, ns, "", 1)
	if err := s.Knative.EventingV1().Triggers(ns).Delete(t.Context(), "to-billing", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitDeadLetters(t, ns, "", 0)
	s.trigger(t, ns, "orders", "to-billing", failing.URL, ofType("none"))
	s.awaitDeadLetters(t, ns, "", 0)
}

// TestDeadLetterStoreEviction bounds a namespace: the oldest dead letters go, are counted and reported. Events are accepted meanwhile.
func TestDeadLetterStoreEviction(t *testing.T) {
	ns, other := namespace(), namespace()
	s := start(t, t.TempDir(), "--dead-letter-max-size=1Mi")
	failing := harness.NewSink(t).At("/")
	failing.AnswerCode(http.StatusBadRequest)
	address, quiet := s.broker(t, ns, "orders"), s.broker(t, other, "orders")
	s.trigger(t, ns, "orders", "orders", failing.URL)
	s.trigger(t, other, "orders", "orders", failing.URL)
	mustPost(t, quiet, event{id: "quiet", kind: "order"})
	const count = 60
	for i := range count {
		mustPost(t, address, event{id: fmt.Sprint(i), kind: "order", data: strings.Repeat("x", 50_000)})
	}
	mustPost(t, address, event{id: "large", kind: "order", data: strings.Repeat("y", 900_000)})
	s.awaitDeadLetters(t, ns, "event.id=large", 1)
	harness.Eventually(t, "evictions are counted", func() error {
		left := 0
		for position := "start"; position != ""; {
			parameters := url.Values{}
			if position != "start" {
				parameters.Set("continue", position)
			}
			list := s.deadLetters(t, ns, parameters)
			left, position = left+len(list.Items), list.Continue
		}
		evicted := s.evicted(t, ns)
		if left == 0 || evicted == 0 || left+int(evicted) != count+1 {
			return fmt.Errorf("%d are left, %v were evicted of %d", left, evicted, count+1)
		}
		return nil
	})
	s.awaitDeadLetters(t, other, "", 1)
	kubectl := harness.NewKubectl(t, s.Kubeconfig, ns)
	harness.Eventually(t, "evictions are reported", func() error {
		// Without Events, kubectl reports that on standard error.
		if result := kubectl.Run(t, "", "get", "events", "--field-selector", "reason=DeadLettersEvicted"); !strings.Contains(result.Stdout, "trigger/orders") {
			return errors.New(result.Stdout + result.Stderr)
		}
		return nil
	})
}

// evicted returns the number of dead letters of a namespace that were evicted for lack of space.
func (s *server) evicted(t testing.TB, namespace string) (count float64) {
	t.Helper()
	r := s.Do(t, harness.Request{Path: "/metrics", Accept: "text/plain"})
	prefix := fmt.Sprintf(`knative_eventing_dead_letters_evicted_total{namespace=%q,reason="size"} `, namespace)
	for line := range strings.Lines(string(r.Body)) {
		if value, found := strings.CutPrefix(line, prefix); found {
			if _, err := fmt.Sscan(value, &count); err != nil {
				t.Fatal(err)
			}
		}
	}
	return count
}

// TestDeadLetterStoreDisabled drops undeliverable events of a server without the store, which serves no dead letters.
func TestDeadLetterStoreDisabled(t *testing.T) {
	ns := namespace()
	s := start(t, t.TempDir(), "--dead-letter-retention=0")
	failing := harness.NewSink(t).At("/")
	failing.AnswerCode(http.StatusBadRequest)
	address := s.broker(t, ns, "orders")
	s.trigger(t, ns, "orders", "orders", failing.URL)
	mustPost(t, address, event{id: "1", kind: "order"})
	harness.Eventually(t, "the event is dropped", func() error {
		if dropped := metric(t, s, "knative_eventing_events_dropped_total", "Trigger", ns, "orders"); dropped != 1 {
			return fmt.Errorf("%v were dropped", dropped)
		}
		return nil
	})
	if r := s.Do(t, harness.Request{Path: deadLettersPath(ns)}); r.Code != http.StatusNotFound {
		t.Errorf("list: %d %s", r.Code, r.Body)
	}
}

// TestDeadLetterRequests rejects writes, bad selectors and names, and an annotation with another value.
func TestDeadLetterRequests(t *testing.T) {
	ns := namespace()
	shared.broker(t, ns, "orders")
	for _, test := range []struct {
		method, path string
		body         any
		code         int
		want         string
	}{
		{http.MethodGet, "?fieldSelector=event.data=x", nil, http.StatusBadRequest, "is not a known field selector: only consumer.kind"},
		{http.MethodGet, "?continue=x", nil, http.StatusBadRequest, "parameter 'continue'"},
		{http.MethodGet, "?watch=true", nil, http.StatusMethodNotAllowed, ""},
		{http.MethodGet, "/nothing", nil, http.StatusNotFound, `deadletters.eventing.knative.dev \"nothing\" not found`},
		{http.MethodGet, "/" + strings.Repeat("x", 10_000), nil, http.StatusNotFound, "not found"},
		{http.MethodDelete, "/x-1", nil, http.StatusNotFound, "not found"},
		{http.MethodPost, "", "{}", http.StatusMethodNotAllowed, ""},
		{http.MethodPut, "/x-1", "{}", http.StatusMethodNotAllowed, ""},
		{http.MethodPatch, "/x-1", "{}", http.StatusMethodNotAllowed, ""},
	} {
		r := shared.Do(t, harness.Request{Method: test.method, Path: deadLettersPath(ns) + test.path, Body: test.body})
		if r.Code != test.code || !strings.Contains(string(r.Body), test.want) {
			t.Errorf("%s %.50s: got %d %.300s, want %d with %q", test.method, test.path, r.Code, r.Body, test.code, test.want)
		}
	}
	trigger := newTrigger(ns, "orders", "orders", "http://localhost/", annotated(duckv1.DeadLetterStoreAnnotationKey, "off"))
	if _, err := shared.Knative.EventingV1().Triggers(ns).Create(t.Context(), trigger, metav1.CreateOptions{}); err == nil || !strings.Contains(err.Error(), `"enabled", "disabled"`) {
		t.Errorf("an annotation with another value: %v", err)
	}
}
