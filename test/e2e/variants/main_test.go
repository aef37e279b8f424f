// Package variants tests the variants other than the default: each is installed by the shipped manifests and the install script
// only, serves requests and events, and is uninstalled completely. It needs a cluster without this server.
package variants

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// imageVariable is the environment variable with the reference of the server's image in the cluster's registry.
const imageVariable = "E2E_IMAGE"

// patience is the timeout of waits for several steps.
const patience = 4 * time.Minute

var (
	node  *harness.Node
	image = os.Getenv(imageVariable)
	root  string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	node, err = harness.OpenBareNode()
	if errors.Is(err, harness.ErrNoNode) {
		fmt.Println("skipped:", err)
		return 0
	}
	if image == "" {
		fmt.Println("skipped:", imageVariable, "does not name the server's image: run make e2e")
		return 0
	}
	if err == nil {
		root, err = harness.Root()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// install installs a variant, or a directory that builds on one, until the test ends.
func install(t *testing.T, variant string) {
	t.Helper()
	if _, err := node.Host.CoreV1().Namespaces().Get(t.Context(), harness.SystemNamespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("namespace %s exists (%v): uninstall the server first", harness.SystemNamespace, err)
	}
	t.Cleanup(func() { uninstall(t) })
	if err := node.Script(t.Context(), "install.sh", image, variant); err != nil {
		for _, kind := range []string{"pods", "events"} {
			t.Log(harness.NewKubectl(t, node.Kubeconfig, harness.SystemNamespace).Run(t, "", "get", kind, "-o", "wide").Stdout)
		}
		t.Fatal(err)
	}
	if err := node.FindGateway(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// uninstall removes the installation, and checks that nothing remains.
func uninstall(t *testing.T) {
	t.Helper()
	// The context of a test is canceled during its cleanup.
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	if err := node.Script(ctx, "uninstall.sh"); err != nil {
		t.Error(err)
		return
	}
	if _, err := node.Host.CoreV1().Namespaces().Get(ctx, harness.SystemNamespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("namespace %s after uninstalling: %v, want it deleted", harness.SystemNamespace, err)
	}
	// The host removes a group from its discovery shortly after the registration.
	err := harness.Poll(ctx, func() error {
		groups, err := node.Host.Discovery().ServerGroups()
		if err != nil {
			return err
		}
		for _, group := range groups.Groups {
			if strings.HasSuffix(group.Name, ".knative.dev") {
				return fmt.Errorf("API group %s is still registered", group.Name)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// eventually calls probe until it succeeds, and fails the test with its last error after a timeout.
func eventually(t *testing.T, what string, probe func(ctx context.Context) error) {
	t.Helper()
	harness.EventuallyWithin(t, patience, what, probe)
}

// smoke checks that a Service answers, also from zero, and that an event that a Pod sends arrives.
func smoke(t *testing.T) {
	t.Helper()
	s := node.NewSpace(t, "variant")
	sink := harness.NewSinkOn(t, node.Address)
	app, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(t, s.Application(t, "client", nil), fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/window: 6s}}
    spec: {containers: [{image: %q}]}
---
{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: default}}
---
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: all}
spec: {broker: default, subscriber: {uri: %q}}`, app, sink.At("/all").URL))
	s.Ready(t, "pod/client", "service/hello", "broker/default", "trigger/all")

	outside := node.HTTPClient(patience)
	t.Cleanup(outside.CloseIdleConnections)
	answers := func(client *http.Client, host string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if code, body, err := harness.Exchange(client, request); err != nil || code != http.StatusOK {
			t.Fatalf("%s answers %d, %v, %s", host, code, err, body)
		}
	}
	answers(outside, "hello."+s.Name+".example.com")
	eventually(t, "the Service is at zero", func(ctx context.Context) error {
		pods, err := node.Host.CoreV1().Pods(s.Name).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/service=hello"})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("it has %d Pods", len(pods.Items))
		}
		return err
	})
	inside := s.Client(t, "client")
	inside.Timeout = patience
	answers(inside, s.Host("hello"))

	address := s.Address(t, "broker/default")
	// A replica may not have observed the Broker yet.
	eventually(t, "the event is accepted", func(ctx context.Context) error {
		event, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader("{}"))
		if err != nil {
			return err
		}
		for name, value := range map[string]string{"Specversion": "1.0", "Id": "1", "Source": "/e2e", "Type": "order"} {
			event.Header.Set("Ce-"+name, value)
		}
		event.Header.Set("Content-Type", "application/json")
		code, body, err := harness.Exchange(inside, event)
		if err == nil && code != http.StatusAccepted {
			err = fmt.Errorf("code %d: %s", code, body)
		}
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := sink.At("/all").Await(ctx, 1); err != nil {
		t.Fatal(err)
	}
}
