// Package certmanager tests certificates of cert-manager with a host cluster: a real kube-apiserver, cert-manager's own controllers and
// CustomResourceDefinitions, and the aggregated server with the rights of the shipped RBAC only.
package certmanager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// long bounds every wait: cert-manager makes keys and issues certificates.
const long = 3 * time.Minute

const (
	class      = "cert-manager.certificate.networking.knative.dev"
	selfClass  = "self-managed.certificate.networking.knative.dev"
	mapped     = "shop.example.org"
	foreign    = "foreign.example.org"
	notServing = "the cluster does not serve certificates.cert-manager.io/v1 of cert-manager"
)

var (
	certificates = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}
	issuers      = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "issuers"}
)

// fixture is an installation with one namespace.
type fixture struct {
	*harness.Installation
	ns      string
	tlsPort int
}

// install starts a host cluster and a server, which stop when the test ends.
func install(t *testing.T) *fixture {
	t.Helper()
	cluster, err := harness.StartCluster(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(); err != nil {
			t.Error(err)
		}
	})
	f := &fixture{}
	if f.tlsPort, err = port.Stable(); err != nil {
		t.Fatal(err)
	}
	f.Installation, err = harness.Install(cluster, t.TempDir(), "apiserver,controllers,gateway",
		"--gateway-port=0", "--gateway-tls-port="+strconv.Itoa(f.tlsPort), "--gateway-internal-port=0", "--drain-port=0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Server.Stop(); err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(f.Logs()) {
			if strings.Contains(line, "forbidden") {
				t.Errorf("the host refused a request of the server: %s", line)
			}
		}
		if t.Failed() {
			t.Logf("the server logged\n%s", f.Logs())
		}
	})
	f.ns = f.Namespace(t, "certs", nil)
	return f
}

// await polls until probe succeeds.
func await(t *testing.T, what string, probe func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if err := harness.Poll(ctx, probe); err != nil {
		t.Fatalf("wait until %s: %v", what, err)
	}
}

// configure sets keys of a ConfigMap of the server.
func (f *fixture) configure(t *testing.T, name string, data map[string]string) {
	t.Helper()
	patch, err := yaml.Marshal(map[string]any{"data": data})
	if err == nil {
		patch, err = yaml.YAMLToJSON(patch)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Host.CoreV1().ConfigMaps(harness.SystemNamespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// create creates an object of cert-manager in the namespace.
func (f *fixture) create(t *testing.T, resource schema.GroupVersionResource, kind, name, spec string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal([]byte("spec: "+spec), &object.Object); err != nil {
		t.Fatal(err)
	}
	object.SetGroupVersionKind(resource.GroupVersion().WithKind(kind))
	object.SetName(name)
	if _, err := f.Admin.Dynamic.Resource(resource).Namespace(f.ns).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// certificates is a client of the Certificates of the namespace.
func (f *fixture) certificates() dynamic.ResourceInterface {
	return f.Admin.Dynamic.Resource(certificates).Namespace(f.ns)
}

// application creates a Service with one backend in this process: the cluster has no nodes, so the test reports its Pod as running here.
func (f *fixture) application(t *testing.T, name string) *servingv1.Service {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	t.Cleanup(server.Close)
	address := server.Listener.Addr().(*net.TCPAddr)
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	service.Spec.Template.Annotations = map[string]string{"autoscaling.knative.dev/min-scale": "1"}
	service.Spec.Template.Spec.Containers = []corev1.Container{{
		Image: "registry.example/app@sha256:" + strings.Repeat("0", 64), Ports: []corev1.ContainerPort{{ContainerPort: int32(address.Port)}},
	}}
	service, err := f.Admin.Knative.ServingV1().Services(f.ns).Create(t.Context(), service, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the Pod of the Service is reported as running", func() error {
		pods, err := f.Host.CoreV1().Pods(f.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + name})
		if err != nil || len(pods.Items) == 0 {
			return fmt.Errorf("no Pod: %w", err)
		}
		pod := &pods.Items[0]
		pod.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: address.IP.String(), PodIPs: []corev1.PodIP{{IP: address.IP.String()}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		}
		for _, c := range pod.Spec.Containers {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: true, Started: ptr.To(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
			})
		}
		_, err = f.Host.CoreV1().Pods(f.ns).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		return err
	})
	return service
}

// conditioned waits until a condition has a status and reason, and its message a part.
func conditioned(t *testing.T, read func() (duckv1.Conditions, error), status corev1.ConditionStatus, reason, message string) {
	t.Helper()
	await(t, fmt.Sprintf("CertificateProvisioned is %s %s %q", status, reason, message), func() error {
		all, err := read()
		if err != nil {
			return err
		}
		c := all.Get("CertificateProvisioned")
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) {
			return fmt.Errorf("the condition is %+v", c)
		}
		return nil
	})
}

// route returns the function that reads the conditions of a Route.
func (f *fixture) route(t *testing.T, name string) func() (duckv1.Conditions, error) {
	return func() (duckv1.Conditions, error) {
		route, err := f.Admin.Knative.ServingV1().Routes(f.ns).Get(t.Context(), name, metav1.GetOptions{})
		return route.Status.Conditions, err
	}
}

// mapping returns the function that reads the conditions of a DomainMapping.
func (f *fixture) mapping(t *testing.T, name string) func() (duckv1.Conditions, error) {
	return func() (duckv1.Conditions, error) {
		mapping, err := f.Admin.Knative.ServingV1beta1().DomainMappings(f.ns).Get(t.Context(), name, metav1.GetOptions{})
		return mapping.Status.Conditions, err
	}
}

// mapDomain creates a DomainMapping to a Service.
func (f *fixture) mapDomain(t *testing.T, name, service string) {
	t.Helper()
	mapping := &servingv1beta1.DomainMapping{ObjectMeta: metav1.ObjectMeta{Name: name}}
	mapping.Spec.Ref = duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: service}
	if _, err := f.Admin.Knative.ServingV1beta1().DomainMappings(f.ns).Create(t.Context(), mapping, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// get sends a request for a host by HTTPS on a new connection, and returns the serial number of the certificate.
func (f *fixture) get(ctx context.Context, roots *x509.CertPool, host string) (string, error) {
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(f.Address, strconv.Itoa(f.tlsPort)))
		},
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := (&http.Client{Timeout: time.Minute, Transport: transport}).Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		return "", fmt.Errorf("the response is %s", response.Status)
	}
	return response.TLS.PeerCertificates[0].SerialNumber.String(), nil
}

// gone waits until a Certificate does not exist.
func (f *fixture) gone(t *testing.T, name string) {
	t.Helper()
	await(t, "Certificate "+name+" is deleted", func() error {
		_, err := f.certificates().Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it exists, or %w", err)
	})
}

// TestCertManager covers a Service and DomainMappings whose certificates cert-manager issues: without cert-manager, after its installation, renewal
// without a failed request, a name of another owner, and the end of Certificates.
func TestCertManager(t *testing.T) {
	harness.BuildCertManager(t)
	f := install(t)
	network := map[string]string{
		"external-domain-tls": "Enabled", "certificate-class": class, "http-protocol": "Enabled", "autocreate-cluster-domain-claims": "true",
	}
	f.configure(t, "config-network", network)
	f.application(t, "shop")
	conditioned(t, f.route(t, "shop"), corev1.ConditionTrue, "HTTPDowngrade", notServing)
	f.configure(t, "config-network", map[string]string{"http-protocol": "Redirected"})
	conditioned(t, f.route(t, "shop"), corev1.ConditionFalse, "CertificateProvisionFailed", notServing)

	f.DefineCertManager(t)
	f.RunCertManager(t)
	conditioned(t, f.route(t, "shop"), corev1.ConditionFalse, "CertificateProvisionFailed", "config-certmanager has no issuerRef")
	f.configure(t, "config-certmanager", map[string]string{"issuerRef": "name: ca"})
	conditioned(t, f.route(t, "shop"), corev1.ConditionUnknown, "CertificateNotReady", "cert-manager reports ")
	f.create(t, issuers, "Issuer", "root", "{selfSigned: {}}")
	f.create(t, certificates, "Certificate", "ca", "{isCA: true, commonName: ca, secretName: ca, issuerRef: {name: root}}")
	f.create(t, issuers, "Issuer", "ca", "{ca: {secretName: ca}}")

	var host string
	services := f.Admin.Knative.ServingV1().Services(f.ns)
	await(t, "the Service is ready with HTTPS", func() error {
		service, err := services.Get(t.Context(), "shop", metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready, found := service.Status.Conditions.Get("Ready"), false
		if host, found = strings.CutPrefix(service.Status.URL, "https://"); !found || ready == nil || ready.Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", service.Status)
		}
		return nil
	})
	conditioned(t, f.route(t, "shop"), corev1.ConditionTrue, "", "")
	secret, err := f.Host.CoreV1().Secrets(f.ns).Get(t.Context(), "ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(secret.Data[corev1.TLSCertKey]) {
		t.Fatalf("Secret ca has no certificate: %q", secret.Data[corev1.TLSCertKey])
	}
	first, err := f.get(t.Context(), roots, host)
	if err != nil {
		t.Fatal(err)
	}

	// As cmctl renew does.
	route, err := f.Admin.Knative.ServingV1().Routes(f.ns).Get(t.Context(), "shop", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name := "route-" + string(route.UID)
	await(t, "the renewal is requested", func() error {
		certificate, err := f.certificates().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		all, _, _ := unstructured.NestedSlice(certificate.Object, "status", "conditions")
		all = append(all, map[string]any{"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by the test", "lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339)})
		if err := unstructured.SetNestedSlice(certificate.Object, all, "status", "conditions"); err != nil {
			return err
		}
		_, err = f.certificates().UpdateStatus(t.Context(), certificate, metav1.UpdateOptions{})
		return err
	})
	await(t, "the renewed certificate is served", func() error {
		serial, err := f.get(t.Context(), roots, host)
		if err != nil {
			t.Fatalf("during the renewal: %v", err)
		}
		if serial == first {
			return errors.New("the first certificate is served")
		}
		return nil
	})
	conditioned(t, f.route(t, "shop"), corev1.ConditionTrue, "", "")

	f.mapDomain(t, mapped, "shop")
	conditioned(t, f.mapping(t, mapped), corev1.ConditionTrue, "", "")
	if _, err := f.get(t.Context(), roots, mapped); err != nil {
		t.Error(err)
	}
	f.create(t, certificates, "Certificate", foreign, "{dnsNames: [other.example.org], secretName: other, issuerRef: {name: ca}}")
	f.mapDomain(t, foreign, "shop")
	conditioned(t, f.mapping(t, foreign), corev1.ConditionFalse, "CertificateNotOwned", "There is an existing certificate "+foreign+" that we don't own.")
	if err := f.certificates().Delete(t.Context(), foreign, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	conditioned(t, f.mapping(t, foreign), corev1.ConditionTrue, "", "")

	harness.Edit(t, services, "shop", func(s *servingv1.Service) {
		s.Annotations["networking.knative.dev/certificate-class"] = selfClass
	})
	f.gone(t, name)
	conditioned(t, f.route(t, "shop"), corev1.ConditionTrue, "", "")
	f.configure(t, "config-network", map[string]string{"external-domain-tls": "Disabled"})
	f.gone(t, mapped)
	f.gone(t, foreign)
}
