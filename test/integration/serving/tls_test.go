package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// writeNetwork writes config-network into a directory of settings.
func writeNetwork(t *testing.T, dir, data string) {
	t.Helper()
	content := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: config-network}\ndata: {" + data + "}\n"
	// A reader sees the old or the new file.
	if err := errors.Join(os.WriteFile(filepath.Join(dir, ".new"), []byte(content), 0o600), os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, "network.yaml"))); err != nil {
		t.Fatal(err)
	}
}

// hostAuthority returns the trusted authority of a server's host names.
func hostAuthority(t *testing.T, dataDir string) *x509.CertPool {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dataDir, "pki", "host-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		t.Fatalf("%q has no certificate", content)
	}
	return pool
}

// client returns a client that trusts roots and speaks HTTP/1.1, or HTTP/2 only. It connects to this machine for every host, and follows no
// redirects.
func client(t *testing.T, roots *x509.CertPool, http2 bool) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!http2)
	protocols.SetHTTP2(http2)
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, Protocols: protocols,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Timeout: time.Minute, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// reply is a response without its body.
type reply struct {
	code            int
	proto, location string
}

func replyOf(t *testing.T, c *http.Client, url string) (reply, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Do(r)
	if err != nil {
		return reply{}, err
	}
	response.Body.Close()
	return reply{response.StatusCode, response.Proto, response.Header.Get("Location")}, nil
}

// TestExternalDomainTLS covers HTTPS of public host names with certificates of the server's own authority: URLs, protocols, redirects, Services
// that are excluded, and a restart.
func TestExternalDomainTLS(t *testing.T) {
	data, config := t.TempDir(), t.TempDir()
	writeNetwork(t, config, "external-domain-tls: Enabled")
	s := start(t, data, "--config-dir", config, "--gateway-tls-port", "0")
	site := s.newSite(t, "secure")
	if !strings.HasPrefix(site.url, "https://") {
		t.Fatalf("status.url is %s, want https", site.url)
	}
	roots := hostAuthority(t, data)
	for http2, want := range map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"} {
		response, err := replyOf(t, client(t, roots, http2), site.url+"/info")
		if err != nil || response.code != http.StatusOK || response.proto != want {
			t.Errorf("%s gets %+v, %v; want 200 over %s", site.url, response, err, want)
		}
	}
	if _, err := replyOf(t, client(t, x509.NewCertPool(), true), site.url); err == nil {
		t.Error("a client that does not trust the authority gets an answer")
	}

	address, err := url.Parse(site.url)
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(s.gateway)
	if err != nil {
		t.Fatal(err)
	}
	plain := "http://" + net.JoinHostPort(address.Hostname(), port) + "/info"
	if response, err := replyOf(t, client(t, nil, false), plain); err != nil || response.code != http.StatusOK {
		t.Errorf("without TLS: %+v, %v; want 200", response, err)
	}
	writeNetwork(t, config, "external-domain-tls: Enabled, http-protocol: Redirected")
	harness.Eventually(t, "requests are redirected", func() error {
		response, err := replyOf(t, client(t, nil, false), plain)
		if err != nil {
			return err
		}
		if response.code != http.StatusPermanentRedirect || response.location != site.url+"/info" {
			return fmt.Errorf("%d to %q", response.code, response.location)
		}
		return nil
	})

	services := s.Knative.ServingV1().Services(site.namespace)
	harness.Edit(t, services, site.name, func(service *servingv1.Service) {
		metav1.SetMetaDataAnnotation(&service.ObjectMeta, "networking.knative.dev/certificate-class", settings.CertManagerClass)
	})
	harness.Eventually(t, "the Route reports that cert-manager does not exist", func() error {
		route, err := s.Knative.ServingV1().Routes(site.namespace).Get(t.Context(), site.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		c := route.Status.Conditions.Get(servingv1.RouteConditionCertificateProvisioned)
		if c.Reason != "CertificateProvisionFailed" || !strings.Contains(c.Message, "this server runs without a cluster, where cert-manager would run") {
			return fmt.Errorf("the condition is %+v", c)
		}
		return nil
	})
	harness.Edit(t, services, site.name, func(service *servingv1.Service) {
		metav1.SetMetaDataAnnotation(&service.ObjectMeta, "networking.knative.dev/disable-external-domain-tls", "true")
	})
	harness.Eventually(t, "the Service is excluded", func() error {
		service, err := services.Get(t.Context(), site.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !strings.HasPrefix(service.Status.URL, "http://") {
			return fmt.Errorf("status.url is %s", service.Status.URL)
		}
		_, err = replyOf(t, client(t, roots, true), site.url)
		if err == nil {
			return errors.New("the gateway still has its certificate")
		}
		return nil
	})
}

// TestHTTP3 covers HTTP/3 with a certificate of the server's own authority: responses over TLS advertise it by Alt-Svc, and a WebSocket is refused.
func TestHTTP3(t *testing.T) {
	data, config := t.TempDir(), t.TempDir()
	writeNetwork(t, config, "external-domain-tls: Enabled")
	s := start(t, data, "--config-dir", config, "--gateway-tls-port", "0", "--gateway-http3", "--trusted-proxies", "127.0.0.0/8,::1/128")
	site := s.newSite(t, "quic")
	roots := hostAuthority(t, data)
	ask := func(via http.RoundTripper) (answer reply, altSvc, body string, err error) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, site.url+"/headers", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Forwarded-For", "192.0.2.1")
		response, err := via.RoundTrip(request)
		if err != nil {
			return reply{}, "", "", err
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		return reply{code: response.StatusCode, proto: response.Proto}, response.Header.Get("Alt-Svc"), string(content), err
	}
	address, err := url.Parse(site.url)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`h3=":%s"; ma=3600`, address.Port())
	for _, http2 := range []bool{true, false} {
		if response, altSvc, _, err := ask(client(t, roots, http2).Transport); err != nil || response.code != http.StatusOK || altSvc != want {
			t.Errorf("%+v, Alt-Svc %q, %v; want %q", response, altSvc, err, want)
		}
	}
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, QUICConfig: &quic.Config{HandshakeIdleTimeout: harness.Patience / 2},
		Dial: func(ctx context.Context, _ string, config *tls.Config, limits *quic.Config) (*quic.Conn, error) {
			return quic.DialAddr(ctx, net.JoinHostPort("127.0.0.1", address.Port()), config, limits)
		},
	}
	defer transport.Close()
	var response reply
	var body string
	// The server cancels a handshake that is idle for 5 s, as while this process is stalled.
	harness.Eventually(t, "a request by HTTP/3 is answered", func() (err error) {
		response, _, body, err = ask(transport)
		return err
	})
	if response.code != http.StatusOK || response.proto != "HTTP/3.0" {
		t.Fatalf("%+v, %q; want 200 over HTTP/3.0", response, body)
	}
	if got := decoded[headersReport](t, body).Header; got.Get("X-Forwarded-Proto") != "https" || !strings.HasPrefix(got.Get("X-Forwarded-For"), "192.0.2.1, ") {
		t.Errorf("the application gets %v", got)
	}
	upgrade, err := http.NewRequestWithContext(t.Context(), http.MethodConnect, site.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	upgrade.Proto = "websocket"
	refused, err := transport.RoundTrip(upgrade)
	if err != nil {
		t.Fatal(err)
	}
	refused.Body.Close()
	if refused.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a WebSocket gets %s, want 405", refused.Status)
	}
}

// ownSecret returns a Secret with a new self-signed certificate for a host name.
func ownSecret(t *testing.T, namespace, name, host string) (*corev1.Secret, *x509.CertPool) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key},
	}, pool
}

// TestOwnCertificate covers a DomainMapping with a certificate in a Secret: it is served, stays while the Secret is invalid, and is
// replaced without a failed request.
func TestOwnCertificate(t *testing.T) {
	s := start(t, t.TempDir(), "--gateway-tls-port", "0")
	site := s.newSite(t, "own")
	const host = "shop.example.org"
	core, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	secrets := core.CoreV1().Secrets(site.namespace)
	secret, first := ownSecret(t, site.namespace, "shop", host)
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.claimHost(t, site.namespace, host)
	s.mapHost(t, site.namespace, host, site.name)
	mappings := s.Knative.ServingV1beta1().DomainMappings(site.namespace)
	patch := []byte(`{"spec":{"tls":{"secretName":"shop"}}}`)
	if _, err := mappings.Patch(t.Context(), host, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	const provisioned = servingv1beta1.DomainMappingConditionCertificateProvisioned
	url := s.mapped(t, site.namespace, host, provisioned, corev1.ConditionTrue, "CertificateExternallyProvided").Status.URL
	s.mapped(t, site.namespace, host, "Ready", corev1.ConditionTrue, "")
	kept := client(t, first, true)
	answers := func(c *http.Client) {
		t.Helper()
		if got, err := replyOf(t, c, url); err != nil || got.code != http.StatusOK {
			t.Errorf("%s gets %+v, %v", url, got, err)
		}
	}
	answers(kept)

	replaceSecret := func(data map[string][]byte) {
		t.Helper()
		secret.Data = data
		if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	replaceSecret(map[string][]byte{corev1.TLSCertKey: []byte("garbage"), corev1.TLSPrivateKeyKey: []byte("garbage")})
	m := s.mapped(t, site.namespace, host, provisioned, corev1.ConditionFalse, "CertificateProvisionFailed")
	if message := m.Status.Conditions.Get(provisioned).Message; !strings.Contains(message, "the previous certificate is still served") {
		t.Errorf("the message is %q", message)
	}
	answers(client(t, first, true))

	next, second := ownSecret(t, site.namespace, "shop", host)
	replaceSecret(next.Data)
	s.mapped(t, site.namespace, host, provisioned, corev1.ConditionTrue, "CertificateExternallyProvided")
	answers(client(t, second, true))
	// The connection of the previous certificate stays open.
	answers(kept)
}

// TestFloodOfHandshakes checks that clients that hold unfinished handshakes, request unknown server names or perform handshakes endlessly
// affect neither requests by HTTPS nor without TLS, and that the memory of the server stays bounded.
func TestFloodOfHandshakes(t *testing.T) {
	const (
		// silent is the number of unfinished handshakes: more than the budget has memory for.
		silent   = 600
		requests = 20
		// maxGrowth bounds the growth of the server's resident memory, in bytes.
		maxGrowth = 128 << 20
	)
	data, config := t.TempDir(), t.TempDir()
	writeNetwork(t, config, "external-domain-tls: Enabled")
	s := start(t, data, "--config-dir", config, "--memory-budget", "32Mi")
	site := s.newSite(t, "flooded", instances("1"))
	address, err := url.Parse(site.url)
	if err != nil {
		t.Fatal(err)
	}
	roots, secure := hostAuthority(t, data), net.JoinHostPort("127.0.0.1", address.Port())
	before := residentBytes(t, s.PID())

	for range silent {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", secure)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer func() { cancel(); clients.Wait() }()
	var finished, unknown atomic.Int64
	for _, name := range []string{address.Hostname(), "unknown.example.com"} {
		for range 4 {
			clients.Go(func() {
				dialer := tls.Dialer{Config: &tls.Config{ServerName: name, RootCAs: roots}}
				for ctx.Err() == nil {
					conn, err := dialer.DialContext(ctx, "tcp", secure)
					switch {
					case err == nil:
						finished.Add(1)
						conn.Close()
					case strings.Contains(err.Error(), "unrecognized name"):
						unknown.Add(1)
					}
				}
			})
		}
	}
	_, port, err := net.SplitHostPort(s.gateway)
	if err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		for _, target := range []string{site.url + "/info", "http://" + net.JoinHostPort(address.Hostname(), port) + "/info"} {
			// Each client has a connection of its own.
			if response, err := replyOf(t, client(t, roots, i%2 == 0 && strings.HasPrefix(target, "https")), target); err != nil || response.code != http.StatusOK {
				t.Errorf("request %d to %s: %+v, %v", i, target, response, err)
			}
		}
	}
	harness.Eventually(t, "handshakes of the flood end", func() error {
		if finished.Load() == 0 || unknown.Load() == 0 {
			return fmt.Errorf("%d were successful, %d requested an unknown name", finished.Load(), unknown.Load())
		}
		return nil
	})
	if growth := residentBytes(t, s.PID()) - before; growth > maxGrowth {
		t.Errorf("the resident memory grew by %d bytes, want at most %d", growth, maxGrowth)
	}
}
