package tenants

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// patience is the timeout of a request.
const patience = time.Minute

// ask sends a GET request for a host through the gateway from outside.
func ask(t *testing.T, client *http.Client, host, path string, header map[string]string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gateway"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	for name, value := range header {
		request.Header.Set(name, value)
	}
	code, body, err := harness.Exchange(client, request)
	if err != nil {
		t.Fatal(err)
	}
	return code, body
}

// TestClusterLocal checks that cluster-local Routes do not answer outside by any host name or header.
func TestClusterLocal(t *testing.T) {
	t.Parallel()
	s := node.NewSpace(t, "private")
	s.Apply(t, s.Application(t, "client", nil), service(t, "private", "networking.knative.dev/visibility: cluster-local"), service(t, "public", ""),
		"{apiVersion: eventing.knative.dev/v1, kind: Broker, metadata: {name: default}}",
		"{apiVersion: messaging.knative.dev/v1, kind: Channel, metadata: {name: orders}}")
	s.Ready(t, "service/private", "service/public", "broker/default", "channel/orders")
	public := "public." + s.Name + ".example.com"
	outside := node.HTTPClient(patience)
	if code, body := ask(t, outside, public, "/", nil); code != http.StatusOK {
		t.Fatalf("the public Service answers %d: %s", code, body)
	}
	inside := s.Client(t, "client")
	// The DNS of the cluster may serve the name later than the gateways do.
	harness.Eventually(t, "the private Service answers a Pod", func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Host("private"), http.NoBody)
		if err != nil {
			return err
		}
		code, body, err := harness.Exchange(inside, request)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("code %d: %s", code, body)
		}
		return err
	})

	for host, path := range map[string]string{
		s.Host("private"):                    "/",
		s.Host("private") + ".":              "/",
		s.Host("private") + ":80":            "/",
		strings.ToUpper(s.Host("private")):   "/",
		"private." + s.Name + ".svc":         "/",
		"private." + s.Name:                  "/",
		"private." + s.Name + ".example.com": "/",
		s.Host("public"):                     "/",
		"public." + s.Name:                   "/",
		s.Host("orders-kn-channel"):          "/",
		"broker-ingress." + harness.SystemNamespace + ".svc.cluster.local":   "/" + s.Name + "/default",
		"gateway-internal." + harness.SystemNamespace + ".svc.cluster.local": "/",
	} {
		for _, header := range []map[string]string{nil, {
			"K-Network-Probe": "probe", "K-Kubelet-Probe": "probe", "X-Forwarded-For": "10.244.0.1", "Forwarded": "for=10.244.0.1;host=" + public,
			"Knative-Serving-Namespace": s.Name, "Knative-Serving-Revision": "private-00001",
		}} {
			if code, body := ask(t, outside, host, path, header); code != http.StatusNotFound {
				t.Errorf("%s%s with the headers %v answers %d: %s", host, path, header, code, body)
			}
		}
	}
}

// TestInternalHeaders checks that the internal headers of gateways have no effect in requests from outside, and do not reach
// the application.
func TestInternalHeaders(t *testing.T) {
	t.Parallel()
	s, other := node.NewSpace(t, "mine"), node.NewSpace(t, "theirs")
	for _, in := range []*harness.Space{s, other} {
		in.Apply(t, service(t, "hello", ""))
	}
	s.Ready(t, "service/hello")
	other.Ready(t, "service/hello")
	internal := map[string]string{
		"Knative-Serving-Namespace": other.Name, "Knative-Serving-Revision": "hello-00001", "Knative-Serving-Default-Route": "true",
		"K-Proxy-Request": "activator", "K-Kubelet-Probe": "queue", "K-Network-Probe": "queue", "K-Network-Hash": "override",
		"K-Passthrough-Lb": "true",
	}
	host := "hello." + s.Name + ".example.com"
	outside := node.HTTPClient(patience)
	code, body := ask(t, outside, host, "/headers", internal)
	var report struct {
		Host   string
		Header http.Header
	}
	if err := json.Unmarshal([]byte(body), &report); code != http.StatusOK || err != nil {
		t.Fatalf("code %d, %v: %s", code, err, body)
	}
	if report.Host != host {
		t.Errorf("the application sees the host %s", report.Host)
	}
	for name := range internal {
		if values := report.Header.Values(name); len(values) > 0 {
			t.Errorf("%s: %v reaches the application", name, values)
		}
	}
	_, quiet := ask(t, outside, host, "/info", nil)
	_, loud := ask(t, outside, host, "/info", internal)
	if quiet != loud {
		t.Errorf("with internal headers another instance answers: %s, without %s", loud, quiet)
	}
}

// TestInternalPorts checks that the ports for replicas require a certificate of the installation's own authority.
func TestInternalPorts(t *testing.T) {
	t.Parallel()
	var address string
	harness.Eventually(t, "a replica has an address", func() error {
		pods, err := node.Host.CoreV1().Pods(harness.SystemNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "knative-apiserver/apiserver=true"})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if status := &pods.Items[i].Status; len(status.ContainerStatuses) > 0 && status.ContainerStatuses[0].Ready {
				address = status.PodIP
				return nil
			}
		}
		return fmt.Errorf("of %d Pods none is ready", len(pods.Items))
	})
	for _, port := range []string{"8444", "2379", "2380"} {
		dialer := &tls.Dialer{NetDialer: &net.Dialer{Timeout: patience}, Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // any server must reject
		connection, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(address, port))
		if err != nil {
			if !strings.Contains(err.Error(), "certificate") {
				t.Errorf("port %s: %v", port, err)
			}
			continue
		}
		defer connection.Close()
		// In TLS 1.3, the first read reports the server's rejection.
		if _, err := io.WriteString(connection, "GET / HTTP/1.1\r\nHost: peer\r\n\r\n"); err != nil {
			t.Error(err)
		}
		if err := connection.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Error(err)
		}
		content := make([]byte, 100)
		if n, err := connection.Read(content); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("port %s answers a client without a certificate: %q, %v", port, content[:n], err)
		}
	}
}
