package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// testCA signs client certificates.
type testCA struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newTestCA(t testing.TB) *testCA {
	t.Helper()
	ca := &testCA{key: newKey(t)}
	ca.certificate = ca.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}, &ca.key.PublicKey)
	return ca
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (ca *testCA) sign(t testing.TB, template *x509.Certificate, public any) *x509.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	parent := ca.certificate
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func (ca *testCA) client(t testing.TB, name string, notAfter time.Time) *x509.Certificate {
	t.Helper()
	return ca.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, &newKey(t).PublicKey)
}

func (ca *testCA) provider(t testing.TB) dynamiccertificates.CAContentProvider {
	t.Helper()
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.certificate.Raw})
	provider, err := dynamiccertificates.NewStaticCAContent("test", content)
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

func frontProxyConfig(t testing.TB, ca *testCA, names ...string) *authenticatorfactory.RequestHeaderConfig {
	return &authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders:     headerrequest.StaticStringSlice{"X-Remote-User"},
		GroupHeaders:        headerrequest.StaticStringSlice{"X-Remote-Group"},
		UIDHeaders:          headerrequest.StaticStringSlice{},
		ExtraHeaderPrefixes: headerrequest.StaticStringSlice{"X-Remote-Extra-"},
		CAContentProvider:   ca.provider(t),
		AllowedClientNames:  headerrequest.StaticStringSlice(names),
	}
}

func requestOf(certificate *x509.Certificate, remoteUser string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if certificate != nil {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate}}
	}
	if remoteUser != "" {
		r.Header.Set("X-Remote-User", remoteUser)
	}
	return r
}

// P11: only headers from the front proxy are trusted, also for cached certificates.
func TestFrontProxyTrustsItsCertificateAlone(t *testing.T) {
	ca, other := newTestCA(t), newTestCA(t)
	later := time.Now().Add(time.Hour)
	tests := []struct {
		name string
		r    func() *http.Request
		want string
	}{
		{"the front proxy", func() *http.Request { return requestOf(ca.client(t, "front-proxy", later), "alice") }, "alice"},
		{"a name that is not allowed", func() *http.Request { return requestOf(ca.client(t, "mallory", later), "alice") }, ""},
		{"another authority", func() *http.Request { return requestOf(other.client(t, "front-proxy", later), "alice") }, ""},
		{"an expired certificate", func() *http.Request {
			return requestOf(ca.client(t, "front-proxy", time.Now().Add(-time.Minute)), "alice")
		}, ""},
		{"no certificate", func() *http.Request { return requestOf(nil, "alice") }, ""},
		{"no user", func() *http.Request { return requestOf(ca.client(t, "front-proxy", later), "") }, ""},
	}
	frontProxy := newFrontProxy(frontProxyConfig(t, ca, "front-proxy"))
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := test.r()
			for range 2 {
				response, ok, err := frontProxy.AuthenticateRequest(r.Clone(t.Context()))
				if err != nil {
					t.Fatal(err)
				}
				if ok != (test.want != "") {
					t.Fatalf("authenticated = %v, want %v", ok, test.want != "")
				}
				if ok && (response.User.GetName() != test.want || !slices.Contains(response.User.GetGroups(), user.AllAuthenticated)) {
					t.Errorf("user = %v, want %s, authenticated", response.User, test.want)
				}
			}
		})
	}
}

// countingAuthenticator counts verifications of certificates.
type countingAuthenticator struct {
	authenticator.Request
	calls int
}

func (c *countingAuthenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	c.calls++
	return c.Request.AuthenticateRequest(r)
}

func TestFrontProxyIsVerifiedOnceUntilSomethingChanges(t *testing.T) {
	ca := newTestCA(t)
	config := frontProxyConfig(t, ca, "front-proxy")
	proxy := newFrontProxy(config)
	verifying := &countingAuthenticator{Request: proxy.verifying}
	proxy.verifying = verifying
	certificate := ca.client(t, "front-proxy", time.Now().Add(time.Hour))

	steps := []struct {
		name              string
		change            func()
		wantUser          bool
		wantVerifications int
	}{
		{"first", func() {}, true, 1},
		{"again", func() {}, true, 1},
		{"another certificate", func() { certificate = ca.client(t, "front-proxy", time.Now().Add(time.Hour)) }, true, 2},
		{"other names", func() { config.AllowedClientNames = headerrequest.StaticStringSlice{"front-proxy", "other"} }, true, 3},
		// The verification itself uses the first authority; the test checks that it is called.
		{"another authority", func() { config.CAContentProvider = newTestCA(t).provider(t) }, true, 4},
	}
	for _, step := range steps {
		step.change()
		_, ok, err := proxy.AuthenticateRequest(requestOf(certificate, "alice"))
		if err != nil {
			t.Fatal(err)
		}
		if ok != step.wantUser || verifying.calls != step.wantVerifications {
			t.Errorf("%s: authenticated %v after %d verifications, want %v after %d", step.name, ok, verifying.calls, step.wantUser, step.wantVerifications)
		}
	}
}

// BenchmarkFrontProxy authenticates requests of one front proxy, with and without verifying its certificate each time.
func BenchmarkFrontProxy(b *testing.B) {
	ca := newTestCA(b)
	cached := newFrontProxy(frontProxyConfig(b, ca, "front-proxy"))
	for name, authenticator := range map[string]authenticator.Request{"library": cached.verifying, "cached": cached} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := requestOf(ca.client(b, "front-proxy", time.Now().Add(time.Hour)), "alice")
			for b.Loop() {
				r.Header.Set("X-Remote-User", "alice")
				if _, ok, err := authenticator.AuthenticateRequest(r); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
