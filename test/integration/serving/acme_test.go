package serving

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// serial returns the serial number of the certificate that the gateway serves for the host of a URL.
func serial(t *testing.T, roots *x509.CertPool, address string) (string, error) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: u.Hostname()}}
	conn, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", u.Port()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

// TestACME covers certificates of an ACME server: the first by HTTP-01 while requests without TLS are redirected, the next by TLS-ALPN-01 without
// a failed request, a refused name, and a restart.
func TestACME(t *testing.T) {
	t.Parallel()
	data, config := t.TempDir(), t.TempDir()
	const enabled = "external-domain-tls: Enabled, certificate-class: acme.certificate.networking.knative.dev"
	writeNetwork(t, config, enabled)
	tlsPort, err := port.Stable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--config-dir", config, "--gateway-tls-port", strconv.Itoa(tlsPort)}
	s := start(t, data, args...)
	site := s.newSite(t, "public")
	if !strings.HasPrefix(site.url, "http://") {
		t.Fatalf("status.url is %s, want http without an ACME server", site.url)
	}
	_, port, err := net.SplitHostPort(s.gateway)
	if err != nil {
		t.Fatal(err)
	}
	httpPort, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	const refused = "shop.refused.example.org"
	acme := harness.RunPebble(t, harness.PebbleOptions{HTTPPort: httpPort, TLSPort: tlsPort, Refused: "refused.example.org"})
	configure := func(directory, challenge string) {
		t.Helper()
		writeNetwork(t, config, fmt.Sprintf("%s, http-protocol: Redirected, acme-directory: %q, acme-accept-terms: 'true', acme-email: admin@example.org, acme-ca-bundle: %q, acme-challenge: %s",
			enabled, directory, acme.Bundle, challenge))
	}
	configure(acme.Directory, "http-01")
	services := s.Knative.ServingV1().Services(site.namespace)
	harness.Eventually(t, "the Service has a certificate", func() error {
		service, err := services.Get(t.Context(), site.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !strings.HasPrefix(service.Status.URL, "https://") || service.Status.Conditions.Get("Ready").Status != corev1.ConditionTrue {
			return fmt.Errorf("%+v", service.Status)
		}
		site.url = service.Status.URL
		return nil
	})
	roots := acme.Roots(t)
	first, err := serial(t, roots, site.url)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := replyOf(t, client(t, roots, true), site.url+"/info"); err != nil || got.code != http.StatusOK {
		t.Fatalf("%s gets %+v, %v", site.url, got, err)
	}
	// The application answers unknown tokens.
	const unknown = "/.well-known/acme-challenge/unknown"
	plain := "http://" + net.JoinHostPort(strings.Split(strings.TrimPrefix(site.url, "https://"), ":")[0], port)
	application, err := replyOf(t, client(t, roots, true), site.url+unknown)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := replyOf(t, client(t, nil, false), plain+unknown); err != nil || got.code != application.code {
		t.Errorf("an unknown token gets %+v, %v, want %d of the application", got, err, application.code)
	}
	if got, err := replyOf(t, client(t, nil, false), plain+"/info"); err != nil || got.code != http.StatusPermanentRedirect {
		t.Errorf("without TLS: %+v, %v", got, err)
	}

	// Another directory replaces all certificates. Each request has its own connection.
	configure(acme.Directory+"?next", "tls-alpn-01")
	next := first
	harness.Eventually(t, "the certificate is renewed", func() error {
		for range 20 {
			if got, err := replyOf(t, client(t, roots, false), site.url+"/info"); err != nil || got.code != http.StatusOK {
				t.Fatalf("during the renewal: %+v, %v", got, err)
			}
		}
		if next, err = serial(t, roots, site.url); err != nil {
			t.Fatal(err)
		}
		if next == first {
			return errors.New("the gateway serves the first certificate")
		}
		return nil
	})

	s.claimHost(t, site.namespace, refused)
	s.mapHost(t, site.namespace, refused, site.name)
	const provisioned = servingv1beta1.DomainMappingConditionCertificateProvisioned
	failed := s.mapped(t, site.namespace, refused, provisioned, corev1.ConditionFalse, "CertificateProvisionFailed")
	if message := failed.Status.Conditions.Get(provisioned).Message; !strings.Contains(message, "rejectedIdentifier") || !strings.Contains(message, "retrying at") {
		t.Errorf("the message is %q, want the problem of the ACME server and the next attempt", message)
	}
	before := failed.Status.Conditions.Get(provisioned).Message

	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s = start(t, data, args...)
	site.server = s
	harness.Eventually(t, "the restarted server serves the certificate", func() error {
		got, err := serial(t, roots, site.url)
		if err == nil && got != next {
			err = fmt.Errorf("the certificate has the serial number %s, want %s", got, next)
		}
		return err
	})
	failed = s.mapped(t, site.namespace, refused, provisioned, corev1.ConditionFalse, "CertificateProvisionFailed")
	if message := failed.Status.Conditions.Get(provisioned).Message; message != before {
		t.Errorf("after a restart the message is %q, want %q without another order", message, before)
	}
}
