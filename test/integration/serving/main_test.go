// Package serving tests the built server from `kubectl apply` to an answered request: Revisions run as processes, and requests
// pass its gateway.
package serving

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// shared is the server of all tests that do not start their own; each test uses its own namespace.
var shared *server

func TestMain(m *testing.M) {
	harness.DetectMutations()
	harness.Main(m, func(dir string) (*harness.Standalone, error) {
		config := filepath.Join(dir, "config")
		if err := errors.Join(os.Mkdir(config, 0o755), os.WriteFile(filepath.Join(config, "settings.yaml"), []byte(sharedConfig), 0o600)); err != nil {
			return nil, err
		}
		return harness.StartStandalone(filepath.Join(dir, "data"), "--config-dir", config)
	}, func(s *harness.Standalone) (err error) {
		shared, err = newServer(s)
		return err
	})
}

// sharedConfig are the ConfigMaps of the shared server: the minimum intervals, so that Revisions scale to zero during tests.
const sharedConfig = `
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
  name: config-features
data:
  tag-header-based-routing: enabled
`

// server is a running server with an administrator's clients.
type server struct {
	*harness.Standalone
	*harness.Clients
	// gateway is the address of the gateway, host:port.
	gateway string
	// http sends requests to the gateway for every host.
	http *http.Client
}

func newServer(standalone *harness.Standalone) (*server, error) {
	clients, err := harness.ClientsOf(standalone.Kubeconfig)
	if err != nil {
		return nil, err
	}
	gateway, err := url.Parse(standalone.Gateway)
	if err != nil || gateway.Port() == "" {
		return nil, fmt.Errorf("the server's ready line names the gateway %q, want a URL with a port", standalone.Gateway)
	}
	s := &server{Standalone: standalone, Clients: clients, gateway: net.JoinHostPort("127.0.0.1", gateway.Port())}
	s.http = &http.Client{
		Timeout: time.Minute,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, s.gateway)
			},
			MaxIdleConnsPerHost: 1024,
			DisableCompression:  true,
		},
	}
	return s, nil
}

// start runs a server for one test.
func start(t *testing.T, dataDir string, args ...string) *server {
	t.Helper()
	s, err := newServer(harness.RunStandalone(t, dataDir, args...))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var namespaces atomic.Int64

// namespace returns a namespace that no other test uses.
func namespace() string { return fmt.Sprintf("test-%d", namespaces.Add(1)) }

// option changes a Service that a test applies.
type option func(*servingv1.Service)

// env sets an environment variable of the sample application.
func env(name, value string) option {
	return func(s *servingv1.Service) {
		c := &s.Spec.Template.Spec.Containers[0]
		c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	}
}

// gate returns an option with which backends do not start before open is called.
func gate(t testing.TB) (closed option, open func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "open")
	closed = func(s *servingv1.Service) {
		s.Spec.Template.Spec.Containers[0].StartupProbe = &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", file}}}, PeriodSeconds: 1, FailureThreshold: 100,
		}
	}
	return closed, func() {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// annotation sets an annotation of the revision template.
func annotation(key, value string) option {
	return func(s *servingv1.Service) { metav1.SetMetaDataAnnotation(&s.Spec.Template.ObjectMeta, key, value) }
}

// concurrency sets the template's containerConcurrency.
func concurrency(n int64) option {
	return func(s *servingv1.Service) { s.Spec.Template.Spec.ContainerConcurrency = ptr.To(n) }
}

// traffic sets the distribution of requests.
func traffic(targets ...servingv1.TrafficTarget) option {
	return func(s *servingv1.Service) { s.Spec.Traffic = targets }
}

// revisionName names the template's revision, after the Service's name and a dash.
func revisionName(suffix string) option {
	return func(s *servingv1.Service) { s.Spec.Template.Name = s.Name + "-" + suffix }
}

// app returns a Service that runs the sample application.
func app(t testing.TB, namespace, name string, options ...option) *servingv1.Service {
	t.Helper()
	service := &servingv1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{
				Image:   "ko.local/app",
				Command: []string{harness.AppBinary(t)},
			}}}},
		}}},
	}
	for _, o := range options {
		o(service)
	}
	return service
}

// apply creates or replaces a Service and returns what the server stored.
func (s *server) apply(t testing.TB, service *servingv1.Service) *servingv1.Service {
	t.Helper()
	services := s.Knative.ServingV1().Services(service.Namespace)
	stored, err := services.Create(t.Context(), service, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return harness.Edit(t, services, service.Name, func(stored *servingv1.Service) { stored.Spec = service.Spec })
	}
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// ready waits until a Service's Ready condition is True for its current generation.
func (s *server) ready(t testing.TB, namespace, name string) *servingv1.Service {
	t.Helper()
	return s.until(t, namespace, name, "is ready", func(service *servingv1.Service) error {
		return isReady(service, &service.Status.Status)
	})
}

// until waits until check accepts a Service.
func (s *server) until(t testing.TB, namespace, name, what string, check func(*servingv1.Service) error) *servingv1.Service {
	t.Helper()
	return eventually(t, s.Knative.ServingV1().Services(namespace), name, what, check)
}

// deploy applies a Service and waits until it is ready.
func (s *server) deploy(t testing.TB, service *servingv1.Service) *servingv1.Service {
	t.Helper()
	s.apply(t, service)
	return s.ready(t, service.Namespace, service.Name)
}

// answer is the response to a request.
type answer struct {
	code   int
	header http.Header
	body   string
}

// get sends a GET request through the gateway.
func (s *server) get(ctx context.Context, url string) (*answer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return s.do(request)
}

// do sends a request through the gateway.
func (s *server) do(request *http.Request) (*answer, error) {
	response, err := s.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	return &answer{code: response.StatusCode, header: response.Header, body: string(body)}, nil
}

// mustGet is get for requests that must be answered 200.
func (s *server) mustGet(t testing.TB, url string) string {
	t.Helper()
	a, err := s.get(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if a.code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", url, a.code, a.body)
	}
	return a.body
}
