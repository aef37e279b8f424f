package eventing

import (
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// applied is a user's manifest: a Broker with a Trigger to a uri and one to a Service, and a Channel with a Subscription to the
// Service, whose replies are sent to the Broker.
const applied = `
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: service}
spec:
  broker: default
  filter: {attributes: {type: greeting}}
  subscriber:
    ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: app}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: uri}
spec:
  broker: default
  subscriber: {uri: %q}
---
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: default}
---
apiVersion: messaging.knative.dev/v1
kind: Subscription
metadata: {name: service}
spec:
  channel: {apiVersion: messaging.knative.dev/v1, kind: Channel, name: greetings}
  subscriber:
    ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: app}
  reply:
    ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: default}
---
apiVersion: messaging.knative.dev/v1
kind: Channel
metadata: {name: greetings}
`

// TestKubectlApply checks that objects applied in any order become ready, and that posted events arrive (eventing Broker
// Lifecycle-2 and -4, eventing Channel Lifecycle-2 and -4, eventing Destination Resolution-1, eventing Event Delivery-2 and -5,
// eventing Content Based Routing-5 and -9, eventing Topology Based Routing-5).
func TestKubectlApply(t *testing.T) {
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	kubectl := harness.NewKubectl(t, shared.Kubeconfig, ns)
	kubectl.Must(t, fmt.Sprintf(applied, subscriber.URL), "apply", "-f", "-")
	shared.application(t, ns, "app", corev1.EnvVar{Name: "REPLY_TYPE", Value: "reply"})
	kubectl.Must(t, "", "wait", "broker/default", "trigger/service", "trigger/uri", "channel/greetings", "subscription/service",
		"--for=condition=Ready", "--timeout=1m")
	address := func(object string) string {
		return kubectl.Must(t, "", "get", object, "-o", "jsonpath={.status.address.url}")
	}
	mustPost(t, address("broker/default"), event{id: "to-broker", kind: "greeting"}, event{id: "unmatched", kind: "other"})
	mustPost(t, address("channel/greetings"), event{id: "to-channel", kind: "greeting"})

	// The Service received its events, and its replies to two events arrived at the uri.
	if err := subscriber.Await(bounded(t), 4); err != nil {
		t.Fatal(err)
	}
	replies := map[string]bool{}
	for _, d := range subscriber.Deliveries() {
		switch e := read(t, d); e.attributes["type"] {
		case "reply":
			replies[e.data] = true
		case "greeting", "other":
			if d.ID != "to-broker" && d.ID != "unmatched" {
				t.Errorf("the uri got event %s", d.ID)
			}
		default:
			t.Errorf("the uri got %+v", e)
		}
	}
	if !replies[`{"replyTo":"to-broker"}`] || !replies[`{"replyTo":"to-channel"}`] || len(replies) != 2 {
		t.Errorf("the uri got the replies %v", replies)
	}
	log := logOf(t, ns, "app")
	for id, want := range map[string]int{"to-broker": 1, "to-channel": 1, "unmatched": 0} {
		if n := strings.Count(log, fmt.Sprintf(`"id":%q`, id)); n != want {
			t.Errorf("the Service got event %s %d times, want %d", id, n, want)
		}
	}

	// A second apply changes nothing.
	if out := kubectl.Must(t, fmt.Sprintf(applied, subscriber.URL), "apply", "-f", "-"); strings.Count(out, "unchanged") != 5 {
		t.Errorf("applied again: %s", out)
	}
}

// logOf returns the output of a Service's application.
func logOf(t *testing.T, namespace, name string) string {
	t.Helper()
	serving := shared.Knative.ServingV1()
	revision := fetch[*servingv1.Revision](t, serving.Revisions(namespace), fetch(t, serving.Services(namespace), name).Status.LatestReadyRevisionName)
	u, err := url.Parse(revision.Status.LogURL)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(u.Path)
	if err != nil {
		t.Fatalf("status.logUrl is %q: %v", revision.Status.LogURL, err)
	}
	var all strings.Builder
	for _, entry := range entries {
		content, err := os.ReadFile(u.Path + "/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		all.Write(content)
	}
	return all.String()
}
