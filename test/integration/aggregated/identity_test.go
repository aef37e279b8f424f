package aggregated

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// forged adds the headers with which the front proxy identifies the user.
type forged struct{ http.RoundTripper }

func (f forged) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set("X-Remote-User", "forged-user")
	request.Header.Set("X-Remote-Group", "system:masters")
	request.Header.Set("X-Remote-Extra-Scopes", "all")
	return f.RoundTripper.RoundTrip(request)
}

// direct returns the configuration of a client that connects to the server directly.
func direct(t *testing.T) *rest.Config {
	t.Helper()
	config, err := host.Direct()
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// directTo is direct for another server on this machine, with the same certificate.
func directTo(t *testing.T, port int) *rest.Config {
	t.Helper()
	config := direct(t)
	config.Host = "https://" + net.JoinHostPort(host.Address, strconv.Itoa(port))
	return config
}

// TestForgedIdentity checks that X-Remote-* headers without the certificate of the front proxy are ignored, for every user
// (P11).
func TestForgedIdentity(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "forged", nil)
	user := host.User(t, "genuine-user")
	anonymous, certificate, stranger, token := direct(t), direct(t), direct(t), direct(t)
	certificate.CertData, certificate.KeyData = user.CertData, user.KeyData
	stranger.CertData, stranger.KeyData = selfSigned(t, "front-proxy-client")
	token.BearerToken = host.ServiceAccount(t, ns, "genuine").BearerToken
	for name, test := range map[string]struct {
		config *rest.Config
		want   string
	}{
		"no certificate":                   {anonymous, `User "system:anonymous" cannot list`},
		"certificate of a user":            {certificate, `User "genuine-user" cannot list`},
		"token of a ServiceAccount":        {token, `User "system:serviceaccount:` + ns + `:genuine" cannot list`},
		"certificate of another authority": {stranger, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for how, wrap := range map[string]func(http.RoundTripper) http.RoundTripper{
				"forged": func(next http.RoundTripper) http.RoundTripper { return forged{next} },
				"honest": func(next http.RoundTripper) http.RoundTripper { return next },
			} {
				config := rest.CopyConfig(test.config)
				config.WrapTransport = wrap
				response := clientsOf(t, config).Do(t, harness.Request{Method: http.MethodGet, Path: harness.KindOf("Service").Collection(ns)})
				if test.want == "" {
					if response.Code != http.StatusUnauthorized {
						t.Errorf("%s: code %d, want 401: %s", how, response.Code, response.Body)
					}
					continue
				}
				wantForbidden(t, response, test.want)
			}
		})
	}
}

// TestUnauthenticated checks that an invalid token is rejected, and that anonymous users may use the public paths.
func TestUnauthenticated(t *testing.T) {
	t.Parallel()
	config := direct(t)
	anonymous := clientsOf(t, config)
	for path, code := range map[string]int{
		"/readyz": http.StatusOK, "/livez": http.StatusOK, "/healthz": http.StatusOK,
		"/metrics": http.StatusForbidden, "/apis/serving.knative.dev/v1/services": http.StatusForbidden,
		"/openapi/v2": http.StatusForbidden, "/debug/pprof/": http.StatusForbidden,
	} {
		if response := anonymous.Do(t, harness.Request{Method: http.MethodGet, Path: path}); response.Code != code {
			t.Errorf("anonymous GET %s: code %d, want %d", path, response.Code, code)
		}
	}
	config.BearerToken = "never-issued"
	response := clientsOf(t, config).Do(t, harness.Request{Method: http.MethodGet, Path: "/apis/serving.knative.dev/v1/services"})
	wantStatus(t, response, http.StatusUnauthorized, metav1.StatusReasonUnauthorized)
}

// selfSigned returns a client certificate that no authority of the host signed, and its key.
func selfSigned(t *testing.T, name string) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name, Organization: []string{"system:masters"}},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}
