package eventing

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// tracePath returns the path of the subresource trace of a Broker.
func tracePath(namespace, broker string, parameters url.Values) string {
	return fmt.Sprintf("/apis/eventing.knative.dev/v1/namespaces/%s/brokers/%s/trace?%s", namespace, broker, parameters.Encode())
}

// traceOf gets the trace of an event by one call of kubectl.
func (s *server) traceOf(t *testing.T, path string) *duckv1.EventTrace {
	t.Helper()
	out := harness.NewKubectl(t, s.Kubeconfig, "default").Must(t, "", "get", "--raw", path)
	found := &duckv1.EventTrace{}
	if err := json.Unmarshal([]byte(out), found); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return found
}

// summary returns a trace in short form, a line for each fact.
func summary(trace *duckv1.EventTrace) (lines []string) {
	for _, e := range trace.Events {
		line := fmt.Sprintf("%d %s at %s %s", e.Number, e.ID, e.At.Kind, e.At.Name)
		if e.Parent != nil {
			line += fmt.Sprintf(", %s of %d by %s", e.Parent.As, e.Parent.Number, e.Parent.Consumer.Name)
		}
		lines = append(lines, line)
		for _, d := range e.Deliveries {
			lines = append(lines, fmt.Sprintf("%d to %s: %s %s", e.Number, d.Consumer.Name, d.State, d.Reason))
			for _, a := range d.Attempts {
				lines = append(lines, fmt.Sprintf("%d to %s: %s %d %d next %t", e.Number, d.Consumer.Name, a.To, a.Number, a.Code, a.NextAttempt != nil))
			}
		}
		for _, m := range e.Unmatched {
			lines = append(lines, fmt.Sprintf("%d not to %s: %s %s %t", e.Number, m.Consumer.Name, m.Filter, m.Reason, m.Changed))
		}
	}
	for _, reason := range trace.Incomplete {
		lines = append(lines, "incomplete: "+reason)
	}
	return lines
}

// awaitTrace waits until the summary of a trace is as expected.
func (s *server) awaitTrace(t *testing.T, path string, want []string) {
	t.Helper()
	harness.Eventually(t, "the trace is complete", func() error {
		if got := summary(s.traceOf(t, path)); !slices.Equal(got, want) {
			return errors.New("it is:\n" + strings.Join(got, "\n") + "\nwant:\n" + strings.Join(want, "\n"))
		}
		return nil
	})
}

// TestTrace finds an event by one call, with its reply, the failing subscriber of the reply and the dead letter in a Channel, by the ID of
// any of them and by the trace ID, also after a restart and after the server was killed.
func TestTrace(t *testing.T) {
	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	ns, dir := namespace(), t.TempDir()
	s := start(t, dir)
	sink := harness.NewSink(t)
	replier, failing, archive := sink.At("/replier"), sink.At("/failing"), sink.At("/archive")
	replier.Answer(func(d *harness.Delivery) harness.Answer { return replying(http.StatusOK, d.ID+"-reply", "reply", "") })
	failing.AnswerCode(http.StatusServiceUnavailable)
	orders, dead := s.broker(t, ns, "orders"), s.channel(t, ns, "dead")
	s.subscription(t, ns, "dead", "archive", archive.URL)
	s.trigger(t, ns, "orders", "replier", replier.URL, ofType("order"))
	options := retries(1, "PT0.1S")
	options.DeadLetterSink = &duckv1.Destination{URI: dead}
	s.trigger(t, ns, "orders", "failing", failing.URL, ofType("reply"), delivered(options))
	mustPost(t, orders, event{id: "1", kind: "order", extensions: map[string]string{"traceparent": "00-" + traceID + "-00f067aa0ba902b7-01"}},
		event{id: "2", kind: "other"})

	want := []string{
		"1 1 at Broker orders",
		"1 to replier: Delivered ", "1 to replier: Subscriber 1 200 next false",
		`1 not to failing: filter.attributes.type must be "reply", the event has "order" false`,
		"2 1-reply at Broker orders, Reply of 1 by replier",
		"2 to failing: DeadLettered ", "2 to failing: Subscriber 1 503 next true", "2 to failing: Subscriber 2 503 next false", "2 to failing: DeadLetterSink 1 202 next false",
		`2 not to replier: filter.attributes.type must be "order", the event has "reply" false`,
		"3 1-reply at Channel dead, DeadLetter of 2 by failing",
		"3 to archive: Delivered ", "3 to archive: Subscriber 1 202 next false",
	}
	check := func(t *testing.T) {
		t.Helper()
		for _, parameters := range []url.Values{
			{"id": {"1"}}, {"id": {"1"}, "source": {"/test"}}, {"id": {"1-reply"}}, {"traceid": {traceID}},
		} {
			s.awaitTrace(t, tracePath(ns, "orders", parameters), want)
		}
		s.awaitTrace(t, tracePath(ns, "orders", url.Values{"id": {"2"}}), []string{
			"1 2 at Broker orders",
			`1 not to failing: filter.attributes.type must be "reply", the event has "other" false`,
			`1 not to replier: filter.attributes.type must be "order", the event has "other" false`,
		})
		path := fmt.Sprintf("/apis/messaging.knative.dev/v1/namespaces/%s/channels/dead/trace?id=1-reply", ns)
		s.awaitTrace(t, path, []string{"1 1-reply at Channel dead", "1 to archive: Delivered ", "1 to archive: Subscriber 1 202 next false"})
	}
	check(t)
	found := s.traceOf(t, tracePath(ns, "orders", url.Values{"id": {"1"}}))
	if e := found.Events[0]; e.Type != "order" || e.TraceID != traceID || e.SenderAddress != "127.0.0.1" || e.AcceptedAt == nil || found.Kind != "EventTrace" {
		t.Errorf("the event is %+v of a %s", e, found.Kind)
	}
	if a := found.Events[1].Deliveries[0].Attempts[0]; a.Address != failing.URL || !strings.Contains(a.Error, "503") || !a.NextAttempt.After(a.Time.Time) {
		t.Errorf("the first attempt is %+v", a)
	}

	for _, end := range []struct {
		name string
		stop func() error
	}{
		{"killed", func() error { s.Kill(); return nil }},
		{"restarted", func() error { return s.Stop() }},
	} {
		if err := end.stop(); err != nil {
			t.Fatal(err)
		}
		if err := s.restart(); err != nil {
			t.Fatal(err)
		}
		t.Run(end.name, check)
	}
}

// TestTraceRequests rejects bad parameters, and answers for events that are not known. A trace can be shown as a table.
func TestTraceRequests(t *testing.T) {
	ns := namespace()
	address := shared.broker(t, ns, "orders")
	mustPost(t, address, event{id: "1", kind: "order"})
	long := strings.Repeat("x", 70<<10)
	for query, want := range map[string]string{
		"":                       "one of the parameters 'id' and 'traceid' must be set",
		"id=":                    "parameter 'id' must not be empty",
		"id=1&id=2":              "parameter 'id' must be set only once",
		"id=1&sauce=x":           "unknown parameter 'sauce'; valid parameters are id, source, traceid",
		"source=x":               "one of the parameters 'id' and 'traceid' must be set",
		"traceid=xyz":            "parameter 'traceid' must be 32 lower-case hexadecimal digits",
		"id=1&traceid=" + "abcd": "only one of the parameters 'id' and 'traceid' may be set",
		"id=" + long:             "parameter 'id' must have at most 65536 bytes",
	} {
		r := shared.Do(t, harness.Request{Path: strings.TrimSuffix(tracePath(ns, "orders", nil), "?") + "?" + query})
		if r.Code != http.StatusBadRequest || !strings.Contains(r.Status(t).Message, want) {
			t.Errorf("%.100s: got %d %.300s, want 400 with %q", query, r.Code, r.Body, want)
		}
	}
	if r := shared.Do(t, harness.Request{Path: tracePath(ns, "nowhere", url.Values{"id": {"1"}})}); r.Code != http.StatusNotFound {
		t.Errorf("the trace of no Broker: got %d %s", r.Code, r.Body)
	}
	for _, id := range []string{"unknown", strings.Repeat("y", 60<<10)} {
		shared.awaitTraceByClient(t, tracePath(ns, "orders", url.Values{"id": {id}}), nil)
	}
	shared.awaitTraceByClient(t, tracePath(ns, "orders", url.Values{"id": {"1"}}), []string{"1 1 at Broker orders"})

	r := shared.Do(t, harness.Request{Path: tracePath(ns, "orders", url.Values{"id": {"1"}}), Accept: "application/json;as=Table;v=v1;g=meta.k8s.io"})
	var table metav1.Table
	if err := json.Unmarshal(r.Body, &table); err != nil || len(table.Rows) != 1 {
		t.Fatalf("%v: %s", err, r.Body)
	}
	if cells := fmt.Sprint(table.Rows[0].Cells[1:]...); !strings.Contains(cells, "1 1") || !strings.Contains(cells, "Accepted") || !strings.Contains(cells, "from 127.0.0.1") {
		t.Errorf("the row is %s", cells)
	}
}

// awaitTraceByClient is awaitTrace without kubectl.
func (s *server) awaitTraceByClient(t *testing.T, path string, want []string) {
	t.Helper()
	harness.Eventually(t, "the trace is complete", func() error {
		r := s.Do(t, harness.Request{Path: path})
		found := &duckv1.EventTrace{}
		if err := json.Unmarshal(r.Body, found); err != nil || r.Code != http.StatusOK {
			return fmt.Errorf("got %d %s: %w", r.Code, r.Body, err)
		}
		if got := summary(found); !slices.Equal(got, want) {
			return fmt.Errorf("it is %q, want %q", got, want)
		}
		return nil
	})
}
