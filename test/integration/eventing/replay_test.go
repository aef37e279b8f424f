package eventing

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

func replayPath(namespace, broker string) string {
	return "/apis/eventing.knative.dev/v1/namespaces/" + namespace + "/brokers/" + broker + "/replay"
}

// replay requests a replay and returns the EventRun.
func (s *server) replay(t testing.TB, namespace, broker, body string) *eventingv1alpha1.EventRun {
	t.Helper()
	return s.run(t, replayPath(namespace, broker), body)
}

// archivingBroker creates a Broker with an archive, waits until it has it, and returns its address.
func (s *server) archivingBroker(t testing.TB, namespace, name string) string {
	t.Helper()
	core, err := kubernetes.NewForConfigAndClient(s.Config, s.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{settings.KeyArchiveRetention: "1h"}}
	if _, err := core.CoreV1().ConfigMaps(namespace).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	brokers := s.Knative.EventingV1().Brokers(namespace)
	create(t, brokers, &eventingv1.Broker{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       eventingv1.BrokerSpec{Config: &duckv1.KReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: namespace, Name: name}},
	})
	return eventually(t, brokers, name, "is ready and has an archive", func(b *eventingv1.Broker) error {
		if err := condition(b, &b.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, ""); err != nil {
			return err
		}
		return condition(b, &b.Status.Status, eventingv1.BrokerConditionArchiveReady, corev1.ConditionTrue, "")
	}).Status.Address.GetURL()
}

// TestReplay delivers archived events to a new Trigger, in their order with their trace, and to all Triggers that match. They are not archived
// again.
func TestReplay(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	ns := namespace()
	s := shared
	sink := harness.NewSink(t)
	first, late, invoices := sink.At("/first"), sink.At("/late"), sink.At("/invoices")
	orders := s.archivingBroker(t, ns, "orders")
	s.trigger(t, ns, "orders", "first", first.URL)
	early := numbered("early", "order", 10)
	mustPost(t, orders, early...)
	if a := binary("traced", "{}", map[string]string{"Content-Type": "application/json", "Ce-Type": "order", "Traceparent": "00-" + trace + "-b7ad6b7169203331-01"}).send(t, orders); a.code != http.StatusAccepted {
		t.Fatalf("%d %s", a.code, a.body)
	}
	mustPost(t, orders, numbered("invoice", "invoice", 5)...)
	middle := time.Now()
	after := numbered("after", "order", 10)
	mustPost(t, orders, after...)
	if err := first.Await(bounded(t), 26); err != nil {
		t.Fatal(err)
	}

	// To one Trigger, whatever its filters.
	s.trigger(t, ns, "orders", "late", late.URL, ofType("none"), annotated(duckv1.DeliveryOrderAnnotationKey, duckv1.DeliveryOrdered))
	run := s.replay(t, ns, "orders", `{"trigger": "late", "selector": {"type": "order"}}`)
	if done := s.awaitRun(t, run, eventingv1alpha1.EventRunSucceeded); done.Status.Queued != 21 || done.Status.LastEventTime == nil || done.Status.Total != nil {
		t.Errorf("status %+v", done.Status)
	}
	want := slices.Concat(ids(early), []string{"traced"}, ids(after))
	if err := late.AwaitAll(bounded(t), want); err != nil {
		t.Fatal(err)
	}
	if got := deliveredTo(late, 0); !slices.Equal(got, want) {
		t.Errorf("delivered %q", got)
	}
	for _, d := range late.Deliveries() {
		if got := d.Header.Get("Ce-Knativeeventrun"); got != string(run.UID) {
			t.Errorf("event %s has the run %q, want %s", d.ID, got, run.UID)
		}
		if got := d.Header.Get("Traceparent"); d.ID == "traced" && !strings.HasPrefix(got, "00-"+trace+"-") {
			t.Errorf("the event of a trace has the traceparent %q", got)
		}
	}
	kubectl := harness.NewKubectl(t, s.Kubeconfig, ns)
	if table := kubectl.Must(t, "", "get", "eventruns"); !strings.Contains(table, "Trigger/late") || !strings.Contains(table, "Succeeded") || !strings.Contains(table, "21") {
		t.Errorf("table:\n%s", table)
	}

	// To all Triggers that match, of some time.
	s.trigger(t, ns, "orders", "invoices", invoices.URL, ofType("invoice"))
	requests := first.Requests()
	done := s.awaitRun(t, s.replay(t, ns, "orders", fmt.Sprintf(`{"to": %q}`, middle.Format(time.RFC3339Nano))), eventingv1alpha1.EventRunSucceeded)
	if done.Status.Queued != 16 || done.Name != "broker-orders" {
		t.Errorf("%s: status %+v", done.Name, done.Status)
	}
	if err := invoices.Await(bounded(t), 5); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the first Trigger gets the events again", func() error {
		if n := first.Requests() - requests; n != 16 {
			return fmt.Errorf("it got %d, want 16", n)
		}
		return nil
	})
	done = s.awaitRun(t, s.replay(t, ns, "orders", fmt.Sprintf(`{"from": %q, "selector": {"filters": [{"suffix": {"id": "-7"}}]}}`, middle.Format(time.RFC3339Nano))), eventingv1alpha1.EventRunSucceeded)
	if done.Status.Queued != 1 {
		t.Errorf("status %+v", done.Status)
	}
	if n, _ := lookup(t, s, fmt.Sprintf(`knative_eventing_archived_total{namespace=%q}`, ns)); n != 26 {
		t.Errorf("%v events were archived, want 26", n)
	}

	s.broker(t, ns, "plain")
	for path, wanted := range map[string]struct {
		body string
		code int
		text string
	}{
		replayPath(ns, "plain"):                    {"{}", http.StatusConflict, "archive-retention"},
		replayPath(ns, "none"):                     {"{}", http.StatusNotFound, "none"},
		replayPath(ns, "orders"):                   {`{"trigger": "none"}`, http.StatusUnprocessableEntity, "trigger: Not found"},
		replayPath(ns, "orders") + "?dryRun=All":   {`{"from": "2100-01-01T00:00:00Z"}`, http.StatusUnprocessableEntity, "from: Invalid value"},
		replayPath(ns, "orders") + "?pretty=false": {`{"from": "yesterday"}`, http.StatusBadRequest, "yesterday"},
	} {
		if r := s.Do(t, harness.Request{Method: http.MethodPost, Path: path, Body: wanted.body}); r.Code != wanted.code || !strings.Contains(string(r.Body), wanted.text) {
			t.Errorf("%s %s: %d %s", path, wanted.body, r.Code, r.Body)
		}
	}

	// The EventRun is deleted with its Broker.
	if err := s.Knative.EventingV1().Brokers(ns).Delete(t.Context(), "orders", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the EventRun of the deleted Broker is deleted", func() error {
		if _, err := s.Knative.EventingV1alpha1().EventRuns(ns).Get(t.Context(), "broker-orders", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading it returns %w", err)
		}
		return nil
	})
}

// TestReplayResumes kills the server during a replay to all Triggers, which continues after the restart: no event is lost, for any Trigger. A second
// replay at the same time is a conflict; deleting the EventRun cancels it.
func TestReplayResumes(t *testing.T) {
	const count, kills = 300, 2
	ns := namespace()
	s := start(t, t.TempDir())
	sink := harness.NewSink(t)
	orders := s.archivingBroker(t, ns, "orders")
	events := numbered("event", "order", count)
	mustPost(t, orders, events...)
	var subscribers []*harness.Subscriber
	for i := range 3 {
		subscriber := sink.At(fmt.Sprint("/", i))
		s.trigger(t, ns, "orders", fmt.Sprint("t", i), subscriber.URL)
		subscribers = append(subscribers, subscriber)
	}

	run := s.replay(t, ns, "orders", `{"rate": 60}`)
	for i := range kills {
		if err := subscribers[i].Await(bounded(t), 100*(i+1)); err != nil {
			t.Fatal(err)
		}
		s.Kill()
		if err := s.restart(); err != nil {
			t.Fatal(err)
		}
	}
	if done := s.awaitRun(t, run, eventingv1alpha1.EventRunSucceeded); done.Status.Queued != count {
		t.Errorf("status %+v", done.Status)
	}
	for i, subscriber := range subscribers {
		if err := subscriber.AwaitAll(bounded(t), ids(events)); err != nil {
			t.Fatalf("Trigger t%d: %v", i, err)
		}
		t.Logf("%d events were delivered to t%d by %d requests", count, i, subscriber.Requests())
	}

	late := sink.At("/late")
	s.trigger(t, ns, "orders", "late", late.URL)
	// This one takes five minutes.
	canceled := s.replay(t, ns, "orders", `{"trigger": "late", "rate": 1}`)
	if r := s.Do(t, harness.Request{Method: http.MethodPost, Path: replayPath(ns, "orders"), Body: `{"trigger": "late"}`}); r.Code != http.StatusConflict || !strings.Contains(string(r.Body), "is in progress") {
		t.Errorf("a second replay: %d %s", r.Code, r.Body)
	}
	if err := s.Knative.EventingV1alpha1().EventRuns(ns).Delete(t.Context(), canceled.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitRun(t, s.replay(t, ns, "orders", fmt.Sprintf(`{"trigger": "late", "selector": {"id": %q}}`, events[count-1].id)), eventingv1alpha1.EventRunSucceeded)
	if err := late.AwaitAll(bounded(t), ids(events[count-1:])); err != nil {
		t.Fatal(err)
	}
	if n := len(late.Received()); n >= count {
		t.Error("the canceled replay delivered all events")
	}
}

// TestReplayOfMany kills the server several times while it replays many events, of which a subscriber gets each, with bounded memory.
func TestReplayOfMany(t *testing.T) {
	const kills, growth = 3, 256 << 20
	got, ns := harness.NewNumbered(t, "REPLAY_EVENTS", 20_000), namespace()
	count := got.Count()
	s := start(t, t.TempDir())
	orders := s.archivingBroker(t, ns, "orders")
	began := time.Now()
	got.Send(t, http.DefaultClient, orders)
	t.Logf("%d events were archived in %s", count, time.Since(began).Round(time.Millisecond))

	subscriber := httptest.NewServer(got)
	t.Cleanup(subscriber.Close)
	s.trigger(t, ns, "orders", "all", subscriber.URL)
	before := s.ResidentMemory(t)
	began = time.Now()
	run := s.replay(t, ns, "orders", `{"trigger": "all"}`)
	most := 0
	for i := range kills {
		got.Await(t, count*(i+1)/(kills+1), harness.Patience)
		most = max(most, s.ResidentMemory(t))
		s.Kill()
		if err := s.restart(); err != nil {
			t.Fatal(err)
		}
	}
	got.Await(t, count, harness.Patience)
	most = max(most, s.ResidentMemory(t))
	if done := s.awaitRun(t, run, eventingv1alpha1.EventRunSucceeded); done.Status.Queued != int64(count) {
		t.Errorf("status %+v", done.Status)
	}
	t.Logf("replayed in %s with %d repeated deliveries; memory %d MiB before, at most %d seen",
		time.Since(began).Round(time.Millisecond), got.Repeats(), before>>20, most>>20)
	if most-before > growth {
		t.Errorf("memory grew from %d to %d MiB", before>>20, most>>20)
	}
}
