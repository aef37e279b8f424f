package eventing

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

func redrivePath(namespace, trigger string) string {
	return "/apis/eventing.knative.dev/v1/namespaces/" + namespace + "/triggers/" + trigger + "/redrive"
}

// run requests an EventRun by a subresource and returns it.
func (s *server) run(t testing.TB, path, body string) *eventingv1alpha1.EventRun {
	t.Helper()
	r := s.Do(t, harness.Request{Method: http.MethodPost, Path: path, Body: body})
	run := &eventingv1alpha1.EventRun{}
	if err := json.Unmarshal(r.Body, run); err != nil || r.Code != http.StatusCreated || run.Kind != "EventRun" {
		t.Fatalf("%v: %d %s", err, r.Code, r.Body)
	}
	return run
}

// redrive requests a redrive and returns the EventRun.
func (s *server) redrive(t testing.TB, namespace, trigger, body string) *eventingv1alpha1.EventRun {
	t.Helper()
	return s.run(t, redrivePath(namespace, trigger), body)
}

// awaitRun waits until an EventRun has a phase.
func (s *server) awaitRun(t testing.TB, run *eventingv1alpha1.EventRun, phase eventingv1alpha1.EventRunPhase) (now *eventingv1alpha1.EventRun) {
	t.Helper()
	harness.Eventually(t, fmt.Sprintf("the EventRun is %s", phase), func() (err error) {
		if now, err = s.Knative.EventingV1alpha1().EventRuns(run.Namespace).Get(t.Context(), run.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if now.UID != run.UID || now.Status.Phase != phase {
			return fmt.Errorf("%s is %+v", now.UID, now.Status)
		}
		return nil
	})
	return now
}

// deliveredTo returns the IDs of the events that a subscriber accepted after some requests, in order.
func deliveredTo(s *harness.Subscriber, after int) (ids []string) {
	for _, d := range s.Deliveries()[after:] {
		ids = append(ids, d.ID)
	}
	return ids
}

// TestRedriveDestination delivers dead letters to another destination than the subscriber, which gets none. The ones that the destination does not accept
// remain, and the EventRun fails.
func TestRedriveDestination(t *testing.T) {
	ns := namespace()
	s := shared
	sink := harness.NewSink(t)
	subscriber, other := sink.At("/bill"), sink.At("/other")
	subscriber.AnswerCode(http.StatusBadRequest)
	orders := s.broker(t, ns, "orders")
	s.trigger(t, ns, "orders", "bill", subscriber.URL, annotated(duckv1.DeliveryOrderAnnotationKey, duckv1.DeliveryOrdered))
	events := numbered("event", "order", 10)
	mustPost(t, orders, events...)
	s.awaitDeadLetters(t, ns, "", 10)
	before := subscriber.Requests()

	other.AnswerCode(http.StatusBadRequest)
	to := fmt.Sprintf(`{"destination": {"uri": %q}}`, other.URL)
	failed := s.awaitRun(t, s.redrive(t, ns, "bill", to), eventingv1alpha1.EventRunFailed)
	if failed.Status.Failed != 10 || failed.Status.Queued != 0 {
		t.Errorf("status %+v", failed.Status)
	}
	s.awaitDeadLetters(t, ns, "", 10)

	after := other.Requests()
	other.AnswerCode(http.StatusOK)
	done := s.awaitRun(t, s.redrive(t, ns, "bill", to), eventingv1alpha1.EventRunSucceeded)
	if got := deliveredTo(other, after); !slices.Equal(got, ids(events)) || done.Status.Queued != 10 {
		t.Errorf("delivered %q, status %+v", got, done.Status)
	}
	s.awaitDeadLetters(t, ns, "", 0)
	if now := subscriber.Requests(); now != before {
		t.Errorf("the subscriber has got %d requests more", now-before)
	}
}

// TestRedrive delivers dead letters again by kubectl, in their order, once their subscriber works. They are deleted, and the
// EventRun succeeds. Dead letters of other Triggers stay.
func TestRedrive(t *testing.T) {
	ns := namespace()
	s := shared
	sink := harness.NewSink(t)
	subscriber, other := sink.At("/bill"), sink.At("/other")
	subscriber.AnswerCode(http.StatusBadRequest)
	other.AnswerCode(http.StatusBadRequest)
	orders := s.broker(t, ns, "orders")
	s.trigger(t, ns, "orders", "bill", subscriber.URL, ofType("order"), annotated(duckv1.DeliveryOrderAnnotationKey, duckv1.DeliveryOrdered))
	s.trigger(t, ns, "orders", "other", other.URL)
	events := numbered("event", "order", 30)
	mustPost(t, orders, events...)
	mustPost(t, orders, event{id: "rest", kind: "rest"})
	s.awaitDeadLetters(t, ns, "", 61)

	kubectl := harness.NewKubectl(t, s.Kubeconfig, ns)
	// It fails again: the dead letters stay, with new names.
	run := s.redrive(t, ns, "bill", "{}")
	if done := s.awaitRun(t, run, eventingv1alpha1.EventRunSucceeded); *done.Status.Total != 30 || done.Status.Queued != 30 {
		t.Errorf("status %+v", done.Status)
	}
	s.awaitDeadLetters(t, ns, "consumer.kind=Trigger,consumer.name=bill", 30)

	before := subscriber.Requests()
	subscriber.AnswerCode(http.StatusOK)
	out := kubectl.Must(t, `{"selector": {"source": "/test"}}`, "create", "--raw", redrivePath(ns, "bill"), "-f", "-")
	if !strings.Contains(out, `"EventRun"`) {
		t.Errorf("kubectl create --raw:\n%s", out)
	}
	second, err := s.Knative.EventingV1alpha1().EventRuns(ns).Get(t.Context(), run.Name, metav1.GetOptions{})
	if err != nil || second.UID == run.UID {
		t.Fatalf("the ended EventRun was not replaced: %v", err)
	}
	s.awaitRun(t, second, eventingv1alpha1.EventRunSucceeded)
	if err := subscriber.AwaitAll(bounded(t), ids(events)); err != nil {
		t.Fatal(err)
	}
	if got := deliveredTo(subscriber, before); !slices.Equal(got, ids(events)) {
		t.Errorf("delivered %q", got)
	}
	for _, d := range subscriber.Deliveries()[before:] {
		if got := d.Header.Get("Ce-Knativeeventrun"); got != string(second.UID) {
			t.Errorf("event %s has the run %q, want %s", d.ID, got, second.UID)
		}
	}
	s.awaitDeadLetters(t, ns, "consumer.kind=Trigger,consumer.name=bill", 0)
	s.awaitDeadLetters(t, ns, "consumer.kind=Trigger,consumer.name=other", 31)
	if table := kubectl.Must(t, "", "get", "eventruns"); !strings.Contains(table, "Trigger/bill") || !strings.Contains(table, "Succeeded") || !strings.Contains(table, "30/30") {
		t.Errorf("table:\n%s", table)
	}

	other.AnswerCode(http.StatusOK)
	s.awaitRun(t, s.redrive(t, ns, "other", `{"selector": {"type": "rest"}}`), eventingv1alpha1.EventRunSucceeded)
	s.awaitDeadLetters(t, ns, "", 30)
	kubectl.MustFail(t, "may not change", "", "patch", "eventrun", "trigger-other", "--type=merge", "-p", `{"spec": {"target": {"name": "bill"}}}`)
	kubectl.MustFail(t, "Forbidden", `{"apiVersion": "eventing.knative.dev/v1alpha1", "kind": "EventRun", "metadata": {"name": "a"}, "spec": {"target": {"kind": "Trigger", "name": "bill"}, "redrive": {}}}`, "create", "-f", "-")
	for body, want := range map[string]string{`{"rate": 0}`: "rate: Invalid value", `{"destination": {"uri": "/path"}}`: "destination.uri", `{"selector": {}}`: "selector: Required"} {
		if r := s.Do(t, harness.Request{Method: http.MethodPost, Path: redrivePath(ns, "bill"), Body: body}); r.Code != http.StatusUnprocessableEntity || !strings.Contains(string(r.Body), want) {
			t.Errorf("%s: %d %s", body, r.Code, r.Body)
		}
	}

	if r := s.Do(t, harness.Request{Method: http.MethodPost, Path: redrivePath(ns, "bill"), Body: `{"selectr": {"type": "order"}}`}); r.Code != http.StatusBadRequest || !strings.Contains(string(r.Body), "selectr") {
		t.Errorf("with an unknown field: %d %s", r.Code, r.Body)
	}

	// The EventRun is deleted with its Trigger.
	if err := s.Knative.EventingV1().Triggers(ns).Delete(t.Context(), "other", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the EventRun of the deleted Trigger is deleted", func() error {
		if _, err := s.Knative.EventingV1alpha1().EventRuns(ns).Get(t.Context(), "trigger-other", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading it returns %w", err)
		}
		return nil
	})
}

// TestRedriveSubscription delivers the dead letters of a Subscription again.
func TestRedriveSubscription(t *testing.T) {
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	subscriber.AnswerCode(http.StatusBadRequest)
	channel := shared.channel(t, ns, "orders")
	shared.subscribe(t, newSubscription(ns, "orders", "bill", to(uri(subscriber.URL))))
	events := numbered("event", "order", 3)
	mustPost(t, channel, events...)
	shared.awaitDeadLetters(t, ns, "", len(events))
	subscriber.AnswerCode(http.StatusOK)
	run := shared.run(t, "/apis/messaging.knative.dev/v1/namespaces/"+ns+"/subscriptions/bill/redrive", "{}")
	if run.Name != "subscription-bill" {
		t.Fatalf("the EventRun is called %s", run.Name)
	}
	shared.awaitRun(t, run, eventingv1alpha1.EventRunSucceeded)
	if err := subscriber.AwaitAll(bounded(t), ids(events)); err != nil {
		t.Fatal(err)
	}
	shared.awaitDeadLetters(t, ns, "", 0)
}

// TestRedriveResumes kills the server during a redrive, which continues after the restart: no dead letter is lost, and each kill repeats one at
// most. A second redrive at the same time is a conflict; deleting the EventRun cancels it.
func TestRedriveResumes(t *testing.T) {
	const count, kills = 60, 2
	ns := namespace()
	s := start(t, t.TempDir())
	subscriber := harness.NewSink(t).At("/")
	subscriber.AnswerCode(http.StatusBadRequest)
	orders := s.broker(t, ns, "orders")
	s.trigger(t, ns, "orders", "bill", subscriber.URL)
	events := numbered("event", "order", count)
	mustPost(t, orders, events...)
	s.awaitDeadLetters(t, ns, "", count)

	subscriber.AnswerCode(http.StatusOK)
	before := subscriber.Requests()
	run := s.redrive(t, ns, "bill", `{"rate": 10}`)
	for i := range kills {
		if err := subscriber.Await(bounded(t), 10*(i+1)); err != nil {
			t.Fatal(err)
		}
		s.Kill()
		if err := s.restart(); err != nil {
			t.Fatal(err)
		}
	}
	done := s.awaitRun(t, run, eventingv1alpha1.EventRunSucceeded)
	if *done.Status.Total != count || done.Status.Queued != count {
		t.Errorf("status %+v", done.Status)
	}
	if err := subscriber.AwaitAll(bounded(t), ids(events)); err != nil {
		t.Fatal(err)
	}
	s.awaitDeadLetters(t, ns, "", 0)
	t.Logf("%d events were delivered by %d requests", count, subscriber.Requests()-before)

	subscriber.AnswerCode(http.StatusBadRequest)
	mustPost(t, orders, numbered("later", "order", count)...)
	s.awaitDeadLetters(t, ns, "", count)
	subscriber.AnswerCode(http.StatusOK)
	// This one takes a minute.
	canceled := s.redrive(t, ns, "bill", `{"rate": 1}`)
	if r := s.Do(t, harness.Request{Method: http.MethodPost, Path: redrivePath(ns, "bill"), Body: "{}"}); r.Code != http.StatusConflict || !strings.Contains(string(r.Body), "is in progress") {
		t.Errorf("a second redrive: %d %s", r.Code, r.Body)
	}
	if err := s.Knative.EventingV1alpha1().EventRuns(ns).Delete(t.Context(), canceled.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitRun(t, s.redrive(t, ns, "bill", `{"selector": {"id": "later-50"}}`), eventingv1alpha1.EventRunSucceeded)
	if left := s.deadLetters(t, ns, nil).Items; len(left) == 0 {
		t.Error("the canceled redrive delivered all dead letters")
	}
}

// TestManyDeadLetters lists many dead letters in pages, each of them once, and redrives all, with bounded memory. DEAD_LETTERS is another number of them.
func TestManyDeadLetters(t *testing.T) {
	const growth, limit = 256 << 20, 10 * time.Minute
	got, ns := harness.NewNumbered(t, "DEAD_LETTERS", 2_000), namespace()
	count := got.Count()
	s := start(t, t.TempDir())
	var repaired atomic.Bool
	subscriber := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !repaired.Load() {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		got.ServeHTTP(w, r)
	}))
	t.Cleanup(subscriber.Close)
	orders := s.broker(t, ns, "orders")
	s.trigger(t, ns, "orders", "bill", subscriber.URL)
	before := s.ResidentMemory(t)
	began := time.Now()
	got.Send(t, http.DefaultClient, orders)
	harness.EventuallyWithin(t, limit, "all events are dead letters", func(context.Context) error {
		//nolint:contextcheck // Do limits the time of a request.
		if stored := metric(t, s, "knative_eventing_events_dead_lettered_total", "Trigger", ns, "bill"); stored < float64(count) {
			return fmt.Errorf("%.0f of %d are", stored, count)
		}
		return nil
	})
	t.Logf("%d dead letters were stored within %s", count, time.Since(began).Round(time.Millisecond))
	most := s.ResidentMemory(t)

	began = time.Now()
	listed, pages, next := sets.New[string](), 0, ""
	for pages == 0 || next != "" {
		page := s.deadLetters(t, ns, url.Values{"limit": {"500"}, "continue": {next}})
		if len(page.Items) > 500 {
			t.Fatalf("a page has %d dead letters", len(page.Items))
		}
		for i := range page.Items {
			listed.Insert(page.Items[i].Event.ID)
		}
		pages, next = pages+1, page.Continue
		if pages > count {
			t.Fatal("the pages do not end")
		}
	}
	if len(listed) != count {
		t.Errorf("%d dead letters are listed, want %d", len(listed), count)
	}
	t.Logf("they were listed in %d pages within %s", pages, time.Since(began).Round(time.Millisecond))
	most = max(most, s.ResidentMemory(t))

	repaired.Store(true)
	began = time.Now()
	run := s.redrive(t, ns, "bill", "{}")
	got.Await(t, count, harness.Patience)
	most = max(most, s.ResidentMemory(t))
	if done := s.awaitRun(t, run, eventingv1alpha1.EventRunSucceeded); *done.Status.Total != int64(count) || done.Status.Queued != int64(count) {
		t.Errorf("status %+v", done.Status)
	}
	s.awaitDeadLetters(t, ns, "", 0)
	t.Logf("they were delivered within %s, %d of them again; memory %d MiB before, at most %d seen", time.Since(began).Round(time.Millisecond), got.Repeats(), before>>20, most>>20)
	if most-before > growth {
		t.Errorf("memory grew from %d to %d MiB", before>>20, most>>20)
	}
}
