package aggregated

import (
	stdcontext "context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestCertificateRotation renews the serving certificate under load, once from the same authority and once from a new one;
// kube-aggregator trusts both in between. No call fails (P9, P10).
func TestCertificateRotation(t *testing.T) {
	ns := host.Namespace(t, "rotation", nil)
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(root, "hack", "serving-cert.sh")
	next := t.TempDir()
	if out, err := exec.Command(script, next).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	oldCA, newCA := read(t, host.Certs(), "ca.crt"), read(t, next, "ca.crt")
	both := slices.Concat(oldCA, newCA)

	// New connections with their own handshakes, in addition to the aggregator's open ones.
	config := direct(t)
	config.CAData = both
	handshakes := clientsOf(t, config)
	handshakes.HTTP.Transport = withoutKeepAlive(t, both, config.ServerName)
	l := startLoad(t, ns, func(ctx stdcontext.Context) error {
		response, err := handshakes.Send(ctx, harness.Request{Method: http.MethodGet, Path: "/readyz"})
		if err == nil && response.Code != http.StatusOK {
			err = fmt.Errorf("/readyz: code %d", response.Code)
		}
		return err
	})
	l.more(t, 50)

	first := serving(t, both)
	if err := host.MakeCertificate(); err != nil {
		t.Fatal(err)
	}
	second := await(t, both, first)
	l.more(t, 50)

	trust(t, both)
	l.more(t, 100)
	for _, name := range []string{"ca.key", "ca.crt", "tls.key", "tls.crt"} {
		replace(t, filepath.Join(host.Certs(), name), read(t, next, name))
	}
	third := await(t, both, second)
	l.more(t, 100)
	trust(t, newCA)
	l.more(t, 100)
	l.stop()
	l.done.Wait()
	if err := l.failed(time.Now()); err != nil {
		t.Errorf("calls failed: %v", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(newCA)
	if _, err := third.Verify(x509.VerifyOptions{Roots: roots, DNSName: config.ServerName}); err != nil {
		t.Errorf("the last certificate must be of the new authority: %v", err)
	}
}

// TestCertificateTrust checks that no APIService is registered that kube-aggregator calls without a known authority (P9).
func TestCertificateTrust(t *testing.T) {
	all, err := host.Admin.Registrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range all {
		spec := item.Object["spec"].(map[string]any)
		if spec["insecureSkipTLSVerify"] != nil || spec["caBundle"] == nil {
			t.Errorf("APIService %s: insecureSkipTLSVerify %v, caBundle %v", item.GetName(), spec["insecureSkipTLSVerify"], spec["caBundle"])
		}
	}
}

func withoutKeepAlive(t *testing.T, ca []byte, name string) *http.Transport {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name}, DisableKeepAlives: true}
}

// serving returns the certificate that the server presents to new connections.
func serving(t *testing.T, ca []byte) *x509.Certificate {
	t.Helper()
	transport := withoutKeepAlive(t, ca, direct(t).ServerName)
	connection, err := tls.Dial("tcp", fmt.Sprintf("%s:%d", host.Address, host.Port), transport.TLSClientConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	return connection.ConnectionState().PeerCertificates[0]
}

// await waits until the server presents another certificate than old.
func await(t *testing.T, ca []byte, old *x509.Certificate) *x509.Certificate {
	t.Helper()
	var current *x509.Certificate
	within(t, rediscovery, "the new certificate is served", func() error {
		if current = serving(t, ca); current.Equal(old) {
			return fmt.Errorf("serial number %x is", old.SerialNumber)
		}
		return nil
	})
	return current
}

// trust makes kube-aggregator trust the authorities in ca for all groups.
func trust(t *testing.T, ca []byte) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"caBundle": base64.StdEncoding.EncodeToString(ca)}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := host.Admin.Registrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range all {
		_, err := host.Admin.Dynamic.Resource(harness.APIServices()).Patch(t.Context(), item.GetName(), types.MergePatchType, body, metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// replace replaces a file atomically.
func replace(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
