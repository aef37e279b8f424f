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
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestHTTPS covers a new Service that gets HTTPS without a manual step: HTTP/1.1, HTTP/2, WebSockets, and redirects.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	s, address := newSpace(t, "https", `networking.knative.dev/http-protocol: Redirected`)
	s.SaysWithin(t, patience, "route/hello", "CertificateProvisioned", "True")
	roots := hostAuthority(t)
	for http2, proto := range map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"} {
		c := client(t, roots, http2)
		eventually(t, "the Service answers over "+proto, func(ctx context.Context) error {
			got, err := send(ctx, c, address+"/headers", "")
			if err != nil {
				return err
			}
			if got.code != http.StatusOK || got.proto != proto || !strings.Contains(got.body, `"X-Forwarded-Proto":["https"]`) {
				return fmt.Errorf("got %+v", got)
			}
			return nil
		})
	}

	untilServed(t, roots, strings.TrimPrefix(address, "https://"))
	dialer := websocket.Dialer{NetDialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots}, HandshakeTimeout: patience}
	conn, response, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(address, "https")+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	defer conn.Close()
	want := strings.Repeat("message ", 10_000)
	if err := conn.WriteMessage(websocket.TextMessage, []byte(want)); err != nil {
		t.Fatal(err)
	}
	if _, got, err := conn.ReadMessage(); string(got) != want || err != nil {
		t.Errorf("a message came back with %d bytes, %v", len(got), err)
	}

	plain := "http" + strings.TrimPrefix(address, "https")
	eventually(t, "plain requests are redirected", func(ctx context.Context) error {
		got, err := send(ctx, client(t, roots, false), plain+"/path?query=1", "")
		if err != nil {
			return err
		}
		if got.code != http.StatusPermanentRedirect || got.location != address+"/path?query=1" {
			return fmt.Errorf("got %+v", got)
		}
		return nil
	})
}

// TestResumption checks that every gateway resumes the session of another one. In the default installation there are several gateways.
func TestResumption(t *testing.T) {
	t.Parallel()
	_, address := newSpace(t, "resume", "")
	pods, err := node.GatewayPods(t.Context())
	if err != nil || len(pods) == 0 {
		t.Fatalf("the gateways are %d, %v", len(pods), err)
	}
	// resume sends a request to a gateway, which sends tickets with the response.
	resume := func(ctx context.Context, pod *corev1.Pod, c *tls.Config) (resumed bool, err error) {
		transport := &http.Transport{TLSClientConfig: c, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(pod.Status.PodIP, "8445"))
		}}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
		if err != nil {
			return false, err
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return false, err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return response.TLS.DidResume, err
	}
	roots := hostAuthority(t)
	for i := range pods {
		for j := range pods {
			// A gateway gets the certificate and the keys for tickets when they change.
			eventually(t, fmt.Sprintf("%s resumes a session of %s", pods[j].Name, pods[i].Name), func(ctx context.Context) error {
				c := &tls.Config{RootCAs: roots, ClientSessionCache: tls.NewLRUClientSessionCache(1)}
				if _, err := resume(ctx, &pods[i], c); err != nil {
					return err
				}
				resumed, err := resume(ctx, &pods[j], c)
				if err == nil && !resumed {
					err = errors.New("the handshake was a full one")
				}
				return err
			})
		}
	}
}

// newSecret returns a TLS Secret with a new self-signed certificate for a host name.
func newSecret(t *testing.T, host string) (*corev1.Secret, *x509.CertPool) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "certificate"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key},
	}, pool
}

const mapping = `
apiVersion: serving.knative.dev/v1beta1
kind: DomainMapping
metadata: {name: %s}
spec: {ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: hello}, tls: {secretName: certificate}}`

// TestOwnDomain covers a host name of a tenant with the tenant's own certificate: the last good one stays while the Secret has garbage, and another
// tenant gets the name only when it is free.
func TestOwnDomain(t *testing.T) {
	t.Parallel()
	s, _ := newSpace(t, "owner", "")
	other, _ := newSpace(t, "other", "")
	host := "www." + s.Name + ".example.org"
	secret, roots := newSecret(t, host)
	secrets := node.Host.CoreV1().Secrets(s.Name)
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Apply(t, fmt.Sprintf(mapping, host))
	s.Ready(t, "domainmapping/"+host)
	address := (&url.URL{Scheme: "https", Host: host}).String() + "/"
	untilAnswered(t, "the host has its certificate", client(t, roots, true), address, "", http.StatusOK)
	// A gateway that has not received the certificate yet would not have it while the Secret has garbage.
	untilServed(t, roots, host)

	otherSecret, otherRoots := newSecret(t, host)
	if _, err := node.Host.CoreV1().Secrets(other.Name).Create(t.Context(), otherSecret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	other.Apply(t, fmt.Sprintf(mapping, host))
	other.SaysWithin(t, patience, "domainmapping/"+host, "DomainClaimed", "False DomainAlreadyClaimed")

	harness.Edit(t, secrets, secret.Name, func(secret *corev1.Secret) {
		secret.Data = map[string][]byte{corev1.TLSCertKey: []byte("garbage"), corev1.TLSPrivateKeyKey: []byte("garbage")}
	})
	s.SaysWithin(t, patience, "domainmapping/"+host, "CertificateProvisioned", "False CertificateProvisionFailed", "the previous certificate is still served")
	if got, err := send(t.Context(), client(t, roots, true), address, ""); err != nil || got.code != http.StatusOK {
		t.Errorf("while the Secret has garbage: %+v, %v", got, err)
	}
	next, nextRoots := newSecret(t, host)
	harness.Edit(t, secrets, secret.Name, func(secret *corev1.Secret) { secret.Data = next.Data })
	untilAnswered(t, "the next certificate is served", client(t, nextRoots, true), address, "", http.StatusOK)

	s.Delete(t, "domainmapping/"+host)
	other.Ready(t, "domainmapping/"+host)
	untilAnswered(t, "the other tenant has the name", client(t, otherRoots, true), address, "", http.StatusOK)
}

// TestACME covers a new Service that gets the certificate of an ACME server without a manual step, and its renewal under load: no
// request on new connections fails, and a connection stays.
func TestACME(t *testing.T) {
	t.Parallel()
	port := func(address string) int {
		_, text, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		number, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return number
	}
	acme := harness.RunPebble(t, harness.PebbleOptions{
		Address: node.Address, HTTPPort: port(node.Gateway), TLSPort: port(node.GatewayTLS), Validity: 90 * time.Second,
	})
	restore, err := configure("config-network", map[string]string{
		"acme-directory": acme.Directory, "acme-ca-bundle": acme.Bundle, "acme-accept-terms": "true", "acme-email": "admin@example.org",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := restore(); err != nil {
			t.Error(err)
		}
	})
	s, address := newSpace(t, "acme", `networking.knative.dev/certificate-class: acme.certificate.networking.knative.dev`)
	roots := acme.Roots(t)
	// Before the first certificate of the ACME server, one of the server's own authority is served.
	untilAnswered(t, "the certificate of the ACME server is served", client(t, roots, true), address, "", http.StatusOK)
	s.SaysWithin(t, patience, "route/hello", "CertificateProvisioned", "True")

	host := strings.TrimPrefix(address, "https://")
	untilServed(t, roots, host)
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: host}}
	serial := func(ctx context.Context) (string, error) {
		conn, err := dialer.DialContext(ctx, "tcp", node.GatewayTLS)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
	}
	first, err := serial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Connections of HTTP/1.1 are new ones, and the one of HTTP/2 stays.
	var requests, dials atomic.Int32
	repeat, stop := startLoad(t)
	request := func(c *http.Client) {
		repeat(func(ctx context.Context, number int) error {
			got, err := send(ctx, c, address, "")
			if err != nil || got.code != http.StatusOK {
				return fmt.Errorf("request %d: %+v, %w", number, got, err)
			}
			requests.Add(1)
			return nil
		})
	}
	for range 4 {
		c := client(t, roots, false)
		c.Transport.(*http.Transport).DisableKeepAlives = true
		request(c)
	}
	kept := client(t, roots, true)
	kept.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dials.Add(1)
		return dial(ctx, network, address)
	}
	request(kept)
	eventually(t, "the certificate is renewed", func(ctx context.Context) error {
		next, err := serial(ctx)
		if err == nil && next == first {
			err = errors.New("the gateway serves the first certificate")
		}
		return err
	})
	renewed := requests.Load()
	eventually(t, "requests continue after the renewal", func(context.Context) error {
		if t.Failed() {
			t.FailNow()
		}
		if more := requests.Load() - renewed; more < 100 {
			return fmt.Errorf("%d requests since", more)
		}
		return nil
	})
	stop()
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections of HTTP/2, want 1", n)
	}
	t.Logf("%d requests until the renewal, %d in all", renewed, requests.Load())
}
