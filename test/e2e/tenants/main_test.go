// Package tenants tests on a real cluster with a node the separation of tenants, which are ServiceAccounts here: rights,
// network access, and that a flood of one tenant does not slow down others.
package tenants

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/load"
)

var node *harness.Node

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if load.Generate() {
		return 0
	}
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

// account creates a ServiceAccount of a namespace, binds a ClusterRole of the installation to it there, and returns the client
// configuration with its token.
func account(t *testing.T, s *harness.Space, name, clusterRole string) *rest.Config {
	t.Helper()
	config := node.AsCluster().ServiceAccount(t, s.Name, name)
	node.AsCluster().Bind(t, s.Name, "system:serviceaccount:"+s.Name+":"+name, "ClusterRole", clusterRole)
	return config
}

func clientsOf(t *testing.T, config *rest.Config) *harness.Clients {
	t.Helper()
	clients, err := harness.NewClients(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// service returns the manifest of a Service of the sample application with exactly one Pod. Its CPU request is its weight in
// the competition for processors: without one, a Pod yields to all others.
func service(t *testing.T, name, labels string) string {
	t.Helper()
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: %s, labels: {%s}}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/min-scale: "1", autoscaling.knative.dev/max-scale: "1"}}
    spec: {containers: [{image: %q, resources: {requests: {cpu: 100m}}}]}`, name, labels, image)
}

// serviceAddress is the host:port of a Service of the installation.
func serviceAddress(t *testing.T, name string) string {
	t.Helper()
	s, err := node.Host.CoreV1().Services(harness.SystemNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(s.Spec.ClusterIP, "80")
}
