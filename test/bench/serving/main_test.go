// Package serving measures the cost of gateway and controllers: requests through the gateway compared with requests directly to
// the application, on the same cores, alternating.
package serving

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

const namespace = "default"

// config allows an initial scale of zero, and HTTPS.
const config = `
apiVersion: v1
kind: ConfigMap
metadata:
  name: config-autoscaler
data:
  allow-zero-initial-scale: "true"
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: config-network
data:
  external-domain-tls: Enabled
`

// disableTLS is the annotation of a Service without HTTPS.
const disableTLS = "networking.knative.dev/disable-external-domain-tls"

var (
	server  *harness.Standalone
	clients *harness.Clients
	// wrk is the path of the load generator.
	wrk string
	// configDir is the directory of the server's settings.
	configDir string
)

func TestMain(m *testing.M) {
	if os.Getenv(bareTLSVariable) != "" {
		fmt.Fprintln(os.Stderr, serveBareTLS())
		os.Exit(1)
	}
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		// This package has no tests; without benchmarks no server is started.
		os.Exit(m.Run())
	}
	if testing.Short() {
		rounds = shortRounds
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if wrk, err = exec.LookPath("wrk"); err != nil {
		return 0, fmt.Errorf("the load generator is not installed, run `apt-get install wrk`: %w", err)
	}
	dir, err := os.MkdirTemp("", "serving-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	tokens := filepath.Join(dir, "tokens.csv")
	configDir = filepath.Join(dir, "config")
	if err := errors.Join(os.Mkdir(configDir, 0o755), os.WriteFile(filepath.Join(configDir, "settings.yaml"), []byte(config), 0o600),
		os.WriteFile(tokens, []byte(caller), 0o600)); err != nil {
		return 0, err
	}
	if server, err = harness.StartStandalone(filepath.Join(dir, "data"), "--config-dir", configDir, "--token-auth-file", tokens); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if clients, err = harness.ClientsOf(server.Kubeconfig); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// service is a Service that runs the sample application, with an initial scale and without HTTPS.
func service(b *testing.B, name string, initialScale int) *servingv1.Service {
	b.Helper()
	return &servingv1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{disableTLS: "true"}},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{servingv1.InitialScaleAnnotationKey: strconv.Itoa(initialScale)}},
			Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
				Image:   "ko.local/app",
				Command: []string{harness.AppBinary(b)},
			}}}},
		}}},
	}
}

// deploy creates a Service, waits until it is ready, and returns the host name of its URL.
func deploy(b *testing.B, s *servingv1.Service) string {
	b.Helper()
	if _, err := clients.Knative.ServingV1().Services(namespace).Create(b.Context(), s, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	var host string
	harness.Eventually(b, "Service "+s.Name+" is ready", func() error {
		current, err := clients.Knative.ServingV1().Services(namespace).Get(b.Context(), s.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !isReady(current) {
			return fmt.Errorf("its conditions are %+v", current.Status.Conditions)
		}
		u, err := url.Parse(current.Status.URL)
		if err != nil {
			return err
		}
		host = u.Host
		return nil
	})
	return host
}

func isReady(s *servingv1.Service) bool {
	ready := s.Status.Conditions.Get("Ready")
	return ready != nil && ready.Status == corev1.ConditionTrue && s.Status.ObservedGeneration == s.Generation
}

// gateway returns the URL of the gateway's address.
func gateway(b *testing.B) string {
	b.Helper()
	u, err := url.Parse(server.Gateway)
	if err != nil {
		b.Fatal(err)
	}
	return "http://" + net.JoinHostPort("127.0.0.1", u.Port())
}

// startApp runs the sample application besides the server, with an environment, and returns its URL once it answers.
func startApp(b *testing.B, env ...string) (string, func()) {
	b.Helper()
	number, err := port.Stable()
	if err != nil {
		b.Fatal(err)
	}
	process, err := harness.StartProcess(append(env, "PORT="+strconv.Itoa(number)), harness.AppBinary(b))
	if err != nil {
		b.Fatal(err)
	}
	address := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(number))
	for started := time.Now(); ; {
		request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, address, nil)
		if err != nil {
			b.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			response.Body.Close()
			return address, process.Kill
		}
		if time.Since(started) > 10*time.Second {
			b.Fatalf("the application does not answer: %v\n%s", err, process.Log())
		}
	}
}

// bareProxy is a plain httputil.ReverseProxy in front of an application.
func bareProxy(b *testing.B, application string) string {
	b.Helper()
	target, err := url.Parse(application)
	if err != nil {
		b.Fatal(err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 1024
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: transport,
		// wrk aborts requests at its end, which is not logged.
		ErrorLog: log.New(io.Discard, "", 0),
	})
	b.Cleanup(proxy.Close)
	return proxy.URL
}
