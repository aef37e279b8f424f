package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// testAuthority signs certificates of members.
type testAuthority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newTestKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newTestAuthority(t *testing.T) *testAuthority {
	t.Helper()
	a := &testAuthority{t: t, key: newTestKey(t)}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = a.sign(a.cert, a.key)
	return a
}

func (a *testAuthority) sign(template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return signed
}

// member returns the certificate of a member with a key.
func (a *testAuthority) member(key *ecdsa.PrivateKey) *x509.Certificate {
	a.t.Helper()
	return a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, key)
}

// TestAuthorityIsReplaced covers the steps of hack/rotate-etcd-ca.sh: the authority of the members is replaced while one at a time restarts, and
// the others accept writes.
func TestAuthorityIsReplaced(t *testing.T) {
	t.Parallel()
	former, next, key := newTestAuthority(t), newTestAuthority(t), newTestKey(t)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := TLSFiles{CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key"), CAFile: filepath.Join(dir, "ca")}
	write := func(path string, blocks ...*pem.Block) {
		t.Helper()
		var content []byte
		for _, block := range blocks {
			content = append(content, pem.EncodeToMemory(block)...)
		}
		// Members may read it at any time.
		if err := os.WriteFile(path+".new", content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	certificate := func(c *x509.Certificate) *pem.Block { return &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw} }
	write(files.KeyFile, &pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	write(files.CertFile, certificate(former.member(key)))
	write(files.CAFile, certificate(former.cert))
	f := newFleet(t, 3)
	for i := range f.options {
		f.options[i].TLS = files
	}
	f.start(0, 1, 2)
	var keys []string
	restart := func(step string) {
		t.Helper()
		for n := range 3 {
			f.stop(n)
			keys = append(keys, fmt.Sprintf("%s-%d", step, n))
			f.put((n+1)%3, keys[len(keys)-1])
			f.start(n)
		}
	}
	write(files.CAFile, certificate(former.cert), certificate(next.cert))
	restart("a")
	write(files.CertFile, certificate(next.member(key)))
	write(files.CAFile, certificate(next.cert))
	restart("b")
	slices.Sort(keys)
	for n := range 3 {
		f.holds(n, keys...)
	}
	f.voters(3)

	roots := x509.NewCertPool()
	roots.AddCert(next.cert)
	for _, address := range []string{f.options[0].Listen, f.options[0].ListenClient} {
		for who, authority := range map[string]*testAuthority{"former": former, "next": next} {
			own := &tls.Certificate{Certificate: [][]byte{authority.member(key).Raw}, PrivateKey: key}
			transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
				RootCAs: roots, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil },
			}}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/version", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := transport.RoundTrip(request)
			if err == nil {
				response.Body.Close()
			}
			if accepted := err == nil; accepted != (authority == next) {
				t.Errorf("%s with a certificate of the %s authority: %v", address, who, err)
			}
		}
	}
}
