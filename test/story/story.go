// Package story is the test of what users do about an event that was not delivered, on any installation.
package story

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"sigs.k8s.io/yaml"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/test/browser"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// Installation is where the story takes place.
type Installation struct {
	// Kubeconfig is the administrator's file. Namespace is the name of an empty namespace.
	Kubeconfig, Namespace string
	// Container returns a container of the sample application with an environment variable, for a Service.
	Container func(variable, value string) map[string]any
	// Sink receives events that are sent from the installation.
	Sink *harness.Sink
	// Ingress is a client that connects to the event ingress of one replica.
	Ingress *http.Client
	// Kill ends that replica with SIGKILL. It returns when all replicas serve.
	Kill func(t *testing.T)
	// Replicas returns the flags with which kubectl connects to each replica.
	Replicas func(t *testing.T) [][]string
}

// objects are a Broker with an archive, the Trigger process to a Service whose replies the Trigger bill sends to a failing Service.
const objects = `
{apiVersion: v1, kind: ConfigMap, metadata: {name: archived}, data: {archive-retention: 1h}}
---
{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: orders}, spec: {config: {apiVersion: v1, kind: ConfigMap, name: archived}}}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: process}
spec:
  broker: orders
  filters: [{exact: {type: order}}]
  subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: processor}}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: bill}
spec:
  broker: orders
  filters: [{exact: {type: processed}}]
  subscriber: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: biller}, uri: "/?code=500"}
  delivery: {retry: 1, backoffDelay: PT0.1S}`

// ordered is a Trigger with a name and a subscriber, which delivers one event at a time.
const ordered = `
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: %s, annotations: {eventing.knative.dev/delivery.order: ordered}}
spec: {broker: orders, subscriber: {uri: %q}}`

// lost is the summary of the trace of the event: it was processed, and billing failed for the reply.
var lost = []string{
	"order-1 at Broker orders", "process: Delivered",
	"the reply at Broker orders", "bill: DeadLettered",
}

// Run sends an event that a Service processes, and whose reply becomes a dead letter. It finds the event by its ID in one call on every
// replica, also after the replica that accepted it was killed; delivers the dead letter again after the failure was corrected; and replays
// both events to a new Trigger. All of it is done by kubectl and its plugin, and for another event in the console by a browser.
func Run(t *testing.T, on *Installation) {
	s := &story{Installation: on, kubectl: harness.NewPlugin(t, on.Kubeconfig, on.Namespace)}
	s.kubectl.Must(t, strings.Join([]string{
		objects, service(t, "processor", on.Container("REPLY_TYPE", "processed")), service(t, "biller", on.Container("TARGET", "billing")),
	}, "\n---\n"), "apply", "-f", "-")
	s.kubectl.Must(t, "", "wait", "--for=condition=Ready", "--timeout=2m",
		"ksvc/processor", "ksvc/biller", "broker.eventing.knative.dev/orders", "trigger.eventing.knative.dev/process", "trigger.eventing.knative.dev/bill")
	s.kubectl.Must(t, "", "wait", "--for=condition=ArchiveReady", "--timeout=2m", "broker.eventing.knative.dev/orders")

	s.send(t, "order-1")
	s.isLost(t)
	s.isCounted(t)
	s.Kill(t)
	s.isLost(t)
	s.correct(t)
	s.redrive(t)
	s.replay(t)
	s.inConsole(t)
}

type story struct {
	*Installation
	kubectl *harness.Plugin
}

func service(t *testing.T, name string, container map[string]any) string {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{container}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// send posts an event to the Broker.
func (s *story) send(t *testing.T, id string) {
	t.Helper()
	address := s.kubectl.Must(t, "", "get", "broker.eventing.knative.dev/orders", "-o", "jsonpath={.status.address.url}")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(`{"price": 3}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": id, "Ce-Source": "/story", "Ce-Type": "order", "Content-Type": "application/json",
	} {
		request.Header.Set(name, value)
	}
	if code, body, err := harness.Exchange(s.Ingress, request); err != nil || code != http.StatusAccepted {
		t.Fatalf("sending the event to %s: %d, %v, %s", address, code, err, body)
	}
}

// isLost waits until each replica finds the event, and what became of it, by kubectl and by its plugin; and the dead letter is listed.
func (s *story) isLost(t *testing.T) {
	t.Helper()
	path := fmt.Sprintf("/apis/eventing.knative.dev/v1/namespaces/%s/brokers/orders/trace?%s", s.Namespace, url.Values{"id": {"order-1"}}.Encode())
	for _, replica := range s.Replicas(t) {
		harness.Eventually(t, fmt.Sprintf("kubectl %q finds the event", replica), func() error {
			result := s.kubectl.Kubectl.Run(t, "", append(slices.Clone(replica), "get", "--raw", path)...)
			if result.Code != 0 {
				return errors.New(result.Stderr)
			}
			trace := &duckv1.EventTrace{}
			if err := json.Unmarshal([]byte(result.Stdout), trace); err != nil {
				return err
			}
			if got := summary(trace); !slices.Equal(got, lost) {
				return fmt.Errorf("it is %q, want %q", got, lost)
			}
			return nil
		})
	}
	text := s.run(t, "trace", "broker", "orders", "--id", "order-1")
	for _, want := range []string{"Event order-1, type order", "Trigger process: Delivered", "type processed", "Trigger bill: DeadLettered"} {
		if !strings.Contains(text, want) {
			t.Errorf("kubectl knative trace does not print %q:\n%s", want, text)
		}
	}
	if table := s.kubectl.Must(t, "", "get", "deadletters"); !strings.Contains(table, "Trigger/bill") || !strings.Contains(table, "500") {
		t.Errorf("the dead letters are:\n%s", table)
	}
	if text := s.run(t, "deadletters", "-l", "eventing.knative.dev/trigger=bill"); !strings.Contains(text, "processed") {
		t.Errorf("kubectl knative deadletters prints:\n%s", text)
	}
}

// isCounted checks that the event and the requests are counted, whichever replicas served them, and that kubectl knative top measures them.
func (s *story) isCounted(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "the event and the request are counted", func() error {
		events, requests := &eventingv1alpha1.EventMetrics{}, &servingv1beta1.ServiceMetrics{}
		for object, to := range map[string]any{"eventmetrics/trigger-process": events, "servicemetrics/processor": requests} {
			if err := json.Unmarshal([]byte(s.kubectl.Must(t, "", "get", object, "-o", "json")), to); err != nil {
				return err
			}
		}
		if total := events.Total(); total.Matched != 1 || total.Delivered != 1 {
			return fmt.Errorf("the metrics of the Trigger are %+v", events.Replicas)
		}
		if total := requests.Total(); total.Requests != 1 || total.Failures != 0 {
			return fmt.Errorf("the metrics of the Service are %+v", requests.Replicas)
		}
		return nil
	})
	for kind, want := range map[string]string{"services": "processor", "triggers": "process", "brokers": "orders"} {
		result := s.kubectl.Run(t, "top", kind, "--interval", "100ms")
		if result.Code != 0 || result.Stderr != "" || !regexp.MustCompile(`(?m)^`+want+` +[\d.]+ +[\d.]+ `).MatchString(result.Stdout) {
			t.Errorf("kubectl knative top %s: exit code %d\n%s%s", kind, result.Code, result.Stdout, result.Stderr)
		}
	}
}

// summary returns a line for each event of a trace and for each of its deliveries.
func summary(trace *duckv1.EventTrace) (lines []string) {
	for _, e := range trace.Events {
		id := e.ID
		if e.Parent != nil && e.Parent.As == duckv1.TracedAsReply && e.Parent.Consumer.Name == "process" {
			id = "the reply"
		}
		lines = append(lines, fmt.Sprintf("%s at %s %s", id, e.At.Kind, e.At.Name))
		for _, d := range e.Deliveries {
			lines = append(lines, d.Consumer.Name+": "+d.State)
		}
	}
	return append(lines, trace.Incomplete...)
}

// correct makes billing succeed.
func (s *story) correct(t *testing.T) { s.bill(t, "/") }

// bill changes the path of the Service that the Trigger bill calls.
func (s *story) bill(t *testing.T, path string) {
	t.Helper()
	s.kubectl.Must(t, "", "patch", "trigger.eventing.knative.dev/bill", "--type=merge", "-p", fmt.Sprintf(`{"spec": {"subscriber": {"uri": %q}}}`, path))
	s.kubectl.Must(t, "", "wait", "--for=condition=Ready", "--timeout=1m", "trigger.eventing.knative.dev/bill")
}

// redrive delivers the dead letter again.
func (s *story) redrive(t *testing.T) {
	t.Helper()
	s.run(t, "redrive", "trigger/bill", "--wait")
	s.isRedriven(t)
}

// isRedriven waits until the Service has the event of the last redrive, and no dead letter is left.
func (s *story) isRedriven(t *testing.T) {
	t.Helper()
	run := s.lastRun(t, "trigger-bill")
	if run.Status.Queued != 1 {
		t.Errorf("the redrive has queued %d events, want 1", run.Status.Queued)
	}
	harness.Eventually(t, "the Service has the event of the redrive", func() error {
		log := s.kubectl.Run(t, "logs", "service", "biller", "--since", "10m")
		if !strings.Contains(log.Stdout, fmt.Sprintf(`"knativeeventrun":%q`, run.UID)) {
			return fmt.Errorf("its log is:\n%s%s", log.Stdout, log.Stderr)
		}
		return nil
	})
	harness.Eventually(t, "no dead letter is left", func() error {
		if names := s.kubectl.Must(t, "", "get", "deadletters", "-o", "name"); names != "" {
			return errors.New("there are " + names)
		}
		return nil
	})
}

// replay delivers the archived events to a new Trigger.
func (s *story) replay(t *testing.T) {
	t.Helper()
	subscriber := s.subscribe(t, "analytics")
	s.run(t, "replay", "broker/orders", "--from", "1h", "--trigger", "analytics", "--wait")
	s.isReplayed(t, "analytics", subscriber, "order", "processed")
}

// subscribe creates a Trigger for all events, which delivers one at a time, and returns its subscriber.
func (s *story) subscribe(t *testing.T, name string) *harness.Subscriber {
	t.Helper()
	subscriber := s.Sink.At("/" + name)
	s.kubectl.Must(t, fmt.Sprintf(ordered, name, subscriber.URL), "apply", "-f", "-")
	s.kubectl.Must(t, "", "wait", "--for=condition=Ready", "--timeout=1m", "trigger.eventing.knative.dev/"+name)
	return subscriber
}

// isReplayed waits until a Trigger has delivered the events of its replay in their order: those with the given types.
func (s *story) isReplayed(t *testing.T, trigger string, subscriber *harness.Subscriber, types ...string) {
	t.Helper()
	run := s.lastRun(t, "trigger-"+trigger)
	harness.Eventually(t, "the new Trigger has delivered all events in their order", func() error {
		var got []string
		for _, d := range subscriber.Deliveries() {
			if d.Header.Get("Ce-Knativeeventrun") == string(run.UID) {
				got = append(got, d.Header.Get("Ce-Type"))
			}
		}
		if !slices.Equal(got, types) {
			return fmt.Errorf("it has delivered %q, want %q", got, types)
		}
		return nil
	})
}

// inConsole does the same for a second event in the console.
func (s *story) inConsole(t *testing.T) {
	t.Helper()
	s.bill(t, "/?code=500")
	b := browser.Open(t, s.kubectl)
	s.send(t, "order-2")
	harness.Eventually(t, "the console finds the event", func() error {
		b.Follow(t, "Find an event")
		b.Do(t, "ask for the event", chromedp.WaitVisible(chromedp.CSS("#id[value='']")), chromedp.SendKeys(chromedp.ID("at"), "brokers/orders"), chromedp.SendKeys(chromedp.ID("id"), "order-2"+kb.Enter))
		b.Reads(t, "order-2")
		page := b.Text()
		for _, want := range []string{"accepted by Broker orders", "Trigger process: Delivered", "type processed", "Trigger bill: DeadLettered"} {
			if !strings.Contains(page, want) {
				return fmt.Errorf("there is no %q on the page:\n%s", want, page)
			}
		}
		return nil
	})
	s.correct(t)
	b.Follow(t, "Dead letters")
	b.Reads(t, "Trigger bill", "500 after 2 attempts")
	b.Follow(t, "Deliver all again")
	b.Reads(t, "dead letters of Trigger bill", "Succeeded", "1 of 1")
	s.isRedriven(t)

	subscriber := s.subscribe(t, "audit")
	b.Follow(t, "Replay archived events")
	b.Do(t, "ask for the replay", chromedp.SendKeys(chromedp.ID("trigger"), "audit"), chromedp.SendKeys(chromedp.ID("type"), "processed"))
	b.Follow(t, "Replay")
	b.Reads(t, "archive of Broker orders, for Trigger audit", "Succeeded")
	s.isReplayed(t, "audit", subscriber, "processed", "processed")
}

// lastRun returns an EventRun, which must have succeeded.
func (s *story) lastRun(t *testing.T, name string) *eventingv1alpha1.EventRun {
	t.Helper()
	run := &eventingv1alpha1.EventRun{}
	if err := json.Unmarshal([]byte(s.kubectl.Must(t, "", "get", "eventrun", name, "-o", "json")), run); err != nil {
		t.Fatal(err)
	}
	if run.Status.Phase != eventingv1alpha1.EventRunSucceeded {
		t.Fatalf("EventRun %s is %+v", name, run.Status)
	}
	return run
}

// run executes a command of the plugin, which must succeed.
func (s *story) run(t *testing.T, args ...string) string {
	t.Helper()
	result := s.kubectl.Run(t, args...)
	if result.Code != 0 {
		t.Fatalf("kubectl knative %q: exit code %d\n%s%s", args, result.Code, result.Stdout, result.Stderr)
	}
	return result.Stdout
}
