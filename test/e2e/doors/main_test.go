// Package doors tests on a real cluster with a node which clients may enter by the gateway and by broker-ingress: HTTPS with certificates of the
// server's authority, of users and of an ACME server, claimed host names, restricted callers, requests through the API server, verified senders,
// encrypted events, and the rotation of all authorities.
package doors

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// patience bounds the time until a change takes effect on a busy cluster.
const patience = 4 * time.Minute

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
	restore, err := configure("config-network", map[string]string{"external-domain-tls": "Enabled", "autocreate-cluster-domain-claims": "true"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := restore(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// configure sets keys of a ConfigMap of the server, and returns a function that restores them.
func configure(name string, values map[string]string) (restore func() error, err error) {
	former, err := harness.Configure(context.Background(), node.Host, name, values)
	return func() error { return former(context.Background()) }, err
}

// newSpace creates a namespace with a running Service of the sample application, hello, whose certificate is provisioned. It returns
// the Service's URL too.
func newSpace(t *testing.T, prefix, annotations string) (s *harness.Space, address string) {
	t.Helper()
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	s = node.NewSpace(t, prefix)
	s.Apply(t, fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: hello, annotations: {%s}}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/min-scale: "1"}}
    spec: {containers: [{image: %q}]}`, annotations, image))
	s.Ready(t, "service/hello")
	eventually(t, "the Service has an HTTPS URL", func(ctx context.Context) error {
		service, err := node.Admin.Knative.ServingV1().Services(s.Name).Get(ctx, "hello", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if address = service.Status.URL; !strings.HasPrefix(address, "https://") {
			return fmt.Errorf("status.url is %s", address)
		}
		return nil
	})
	return s, address
}

func eventually(t *testing.T, what string, probe func(context.Context) error) {
	t.Helper()
	harness.EventuallyWithin(t, patience, what, probe)
}

// startLoad returns repeat, which repeats a call in the background with pauses, and stop, which ends all. The first failed call fails the test.
func startLoad(t *testing.T) (repeat func(call func(ctx context.Context, number int) error), stop func()) {
	t.Helper()
	stopping := make(chan struct{})
	var load sync.WaitGroup
	stop = sync.OnceFunc(func() { close(stopping); load.Wait() })
	t.Cleanup(stop)
	return func(call func(ctx context.Context, number int) error) {
		load.Go(func() {
			for number := 0; ; number++ {
				select {
				case <-stopping:
					return
				case <-time.After(100 * time.Millisecond):
				}
				if err := call(t.Context(), number); err != nil {
					t.Errorf("at %s: %v", time.Now().Format(time.StampMilli), err)
					return
				}
			}
		})
	}, stop
}

// hostCertificates returns the authorities that sign certificates of public host names in PEM, as users get them.
func hostCertificates(t *testing.T) (certificates string) {
	t.Helper()
	eventually(t, "the authority is published", func(ctx context.Context) error {
		configMap, err := node.Host.CoreV1().ConfigMaps(harness.SystemNamespace).Get(ctx, harness.HostAuthoritySecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if certificates = configMap.Data["ca.crt"]; certificates == "" {
			return errors.New("the ConfigMap has no certificate")
		}
		return nil
	})
	return certificates
}

// hostAuthority returns a pool of hostCertificates.
func hostAuthority(t *testing.T) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(hostCertificates(t))) {
		t.Fatal("the authority has no valid certificate")
	}
	return pool
}

// dial connects to the gateway for every host name: to its port for HTTPS if the address has port 443.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	gateway := node.Gateway
	if _, port, _ := net.SplitHostPort(address); port == "443" {
		gateway = node.GatewayTLS
	}
	return new(net.Dialer).DialContext(ctx, network, gateway)
}

// client returns a client of the gateway that trusts roots, speaks HTTP/2 or HTTP/1.1 over TLS, and follows no redirects.
func client(t *testing.T, roots *x509.CertPool, http2 bool) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{DialContext: dial, Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Timeout: time.Minute, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// untilServed waits until each gateway presents a certificate of a host name that roots trust.
func untilServed(t *testing.T, roots *x509.CertPool, host string) {
	t.Helper()
	eventually(t, "each gateway serves the certificate of "+host, func(ctx context.Context) error { return served(ctx, roots, host) })
}

// served returns an error unless each gateway presents a certificate of a host name that roots trust.
func served(ctx context.Context, roots *x509.CertPool, host string) error {
	pods, err := node.GatewayPods(ctx)
	if err != nil {
		return err
	}
	return presented(ctx, pods, "8445", roots, host)
}

// presented returns an error unless each Pod presents a certificate of a host name at a port that roots trust.
func presented(ctx context.Context, pods []corev1.Pod, port string, roots *x509.CertPool, host string) error {
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: host}}
	for i := range pods {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(pods[i].Status.PodIP, port))
		if err != nil {
			return fmt.Errorf("%s: %w", pods[i].Name, err)
		}
		conn.Close()
	}
	return nil
}

// answer is a response.
type answer struct {
	code                  int
	proto, location, body string
}

// send sends a GET request with a bearer token, unless it is "".
func send(ctx context.Context, c *http.Client, address, token string) (*answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return &answer{code: response.StatusCode, proto: response.Proto, location: response.Header.Get("Location"), body: string(body)}, err
}

// untilAnswered sends requests until the response has the status code.
func untilAnswered(t *testing.T, what string, c *http.Client, address, token string, code int) (body string) {
	t.Helper()
	eventually(t, what, func(ctx context.Context) error {
		got, err := send(ctx, c, address, token)
		if err != nil {
			return err
		}
		if body = got.body; got.code != code {
			return fmt.Errorf("code %d, want %d: %s", got.code, code, body)
		}
		return nil
	})
	return body
}
