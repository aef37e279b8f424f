package standalone

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

var loopback = net.IPv4(127, 0, 0, 1)

func TestCertificatesAreKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first, err := EnsureCertificates(dir, loopback)
	if err != nil {
		t.Fatal(err)
	}
	before := contents(t, first)
	second, err := EnsureCertificates(dir, loopback)
	if err != nil {
		t.Fatal(err)
	}
	if after := contents(t, second); before != after {
		t.Error("a second start made new certificates")
	}
}

// Incomplete files after a crash are repaired, and the repaired files match.
func TestMissingFilesAreMade(t *testing.T) {
	for _, missing := range []string{"ca.crt", "ca.key", "serving.crt", "serving.key", "admin.crt", "admin.key"} {
		t.Run(missing, func(t *testing.T) {
			dir := t.TempDir()
			if _, err := EnsureCertificates(dir, loopback); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(dir, missing)); err != nil {
				t.Fatal(err)
			}
			c, err := EnsureCertificates(dir, loopback)
			if err != nil {
				t.Fatal(err)
			}
			verify(t, c)
		})
	}
}

func TestServingCertificateFollowsTheAddress(t *testing.T) {
	dir := t.TempDir()
	if _, err := EnsureCertificates(dir, loopback); err != nil {
		t.Fatal(err)
	}
	c, err := EnsureCertificates(dir, net.IPv4(192, 0, 2, 1))
	if err != nil {
		t.Fatal(err)
	}
	leaf := verify(t, c)
	if err := leaf.VerifyHostname("192.0.2.1"); err != nil {
		t.Error(err)
	}
}

func TestKubeconfigIsComplete(t *testing.T) {
	dir := t.TempDir()
	c, err := EnsureCertificates(dir, loopback)
	if err != nil {
		t.Fatal(err)
	}
	path, err := c.WriteKubeconfig(filepath.Join(dir, "kubeconfig"), "https://127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:1" || len(config.CAData) == 0 || len(config.CertData) == 0 || len(config.KeyData) == 0 {
		t.Errorf("the kubeconfig is incomplete: %v", config)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig, which holds a key, has mode %v, want 600", info.Mode().Perm())
	}
}

func verify(t *testing.T, c *Certificates) *x509.Certificate {
	t.Helper()
	pem, err := os.ReadFile(c.CA)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	if _, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey); err != nil {
		t.Error(err)
	}
	serving, err := tls.LoadX509KeyPair(c.ServingCert, c.ServingKey)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(serving.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "localhost"}); err != nil {
		t.Error(err)
	}
	return leaf
}

func contents(t *testing.T, c *Certificates) string {
	t.Helper()
	var all string
	for _, path := range []string{c.CA, c.ServingCert, c.ServingKey, c.ClientCert, c.ClientKey} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all += string(data)
	}
	return all
}
