// Package eventing tests Eventing on a real cluster with a node and three replicas of the server: from kubectl to events that
// Pods send and receive.
package eventing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var node *harness.Node

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	node, err = harness.OpenNode()
	if errors.Is(err, harness.ErrNoNode) {
		fmt.Println("skipped:", err)
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// patience is the timeout of waits for several steps, such as the start of a Pod and retries of a delivery.
const patience = 4 * time.Minute

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// newSpace creates a namespace with a ready Pod client, which sends requests.
func newSpace(t *testing.T, prefix string) *harness.Space {
	t.Helper()
	s := node.NewSpace(t, prefix)
	s.Apply(t, s.Application(t, "client", nil))
	s.Ready(t, "pod/client")
	return s
}

// newSink starts a sink on this machine, at an address that Pods can reach.
func newSink(t *testing.T) *harness.Sink {
	t.Helper()
	return harness.NewSinkOn(t, node.Address)
}

// event returns a request with an event of one type in binary mode.
func event(ctx context.Context, address, id, kind string) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(`{"order": "`+id+`"}`))
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"Ce-Specversion": "1.0", "Ce-Id": id, "Ce-Source": "/e2e", "Ce-Type": kind, "Content-Type": "application/json",
	} {
		request.Header.Set(name, value)
	}
	return request, nil
}

// post sends an event until it is accepted. The DNS of the cluster or a replica may not have observed a new Broker or Channel yet, and its owner
// may change.
func post(t *testing.T, client *http.Client, address, id, kind string) {
	t.Helper()
	postWith(t, client, address, id, kind, nil)
}

// postWith is post with more fields of the header.
func postWith(t *testing.T, client *http.Client, address, id, kind string, header map[string]string) {
	t.Helper()
	until(t, fmt.Sprintf("%s accepts event %s", address, id), func() error {
		request, err := event(t.Context(), address, id, kind)
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range header {
			request.Header.Set(name, value)
		}
		code, body, err := harness.Exchange(client, request)
		switch {
		case err == nil && (code == http.StatusNotFound || code == http.StatusServiceUnavailable || code == http.StatusBadGateway && strings.Contains(body, "lookup ")):
			return fmt.Errorf("code %d: %s", code, body)
		case err != nil || code != http.StatusAccepted:
			t.Fatalf("posting event %s to %s: code %d, %v, %s", id, address, code, err, body)
		}
		return nil
	})
}

// until calls probe until it succeeds, and fails the test with its last error after a timeout.
func until(t *testing.T, what string, probe func() error) {
	t.Helper()
	if err := harness.Poll(bounded(t), probe); err != nil {
		t.Fatalf("wait until %s: %v", what, err)
	}
}

// Manifests of tests are in YAML flow style, one object per line.

func broker(name, spec string) string {
	return fmt.Sprintf("{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: %s}, spec: {%s}}", name, spec)
}

// trigger subscribes a destination to the events of one type of the Broker default; more is more of its spec.
func trigger(name, kind, subscriber, more string) string {
	return fmt.Sprintf(`{apiVersion: eventing.knative.dev/v1, kind: Trigger, metadata: {name: %s},
		spec: {broker: default, filters: [{exact: {type: %s}}], subscriber: %s, %s}}`, name, kind, subscriber, more)
}

func channel(name string) string {
	return fmt.Sprintf("{apiVersion: messaging.knative.dev/v1, kind: Channel, metadata: {name: %s}}", name)
}

// subscription subscribes a destination to a Channel; more is more of its spec.
func subscription(name, channel, subscriber, more string) string {
	return fmt.Sprintf(`{apiVersion: messaging.knative.dev/v1, kind: Subscription, metadata: {name: %s},
		spec: {channel: {apiVersion: messaging.knative.dev/v1, kind: Channel, name: %s}, subscriber: %s, %s}}`, name, channel, subscriber, more)
}

// uri and the functions below it are destinations.
func uri(url string) string { return fmt.Sprintf("{uri: %q}", url) }

func ref(apiVersion, kind, name string) string {
	return fmt.Sprintf("{ref: {apiVersion: %s, kind: %s, name: %s}}", apiVersion, kind, name)
}

func coreService(name string) string { return ref("v1", "Service", name) }

// in sets the namespace of a destination.
func in(namespace, destination string) string {
	return strings.Replace(destination, "{ref: {", "{ref: {namespace: "+namespace+", ", 1)
}
