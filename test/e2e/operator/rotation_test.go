package operator

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestTwoRotations replaces the authority twice as docs/operations.md describes: no call, request or event fails.
func TestTwoRotations(t *testing.T) {
	s := setUp(t)
	l := startSteadyLoad(t, s, true)
	for range 2 {
		node.Rotate(t, harness.AuthoritySecret, verified)
	}
	l.stop(t)
	l.requests.mustNotHaveFailed(t)
	l.events.mustNotHaveFailed(t)
	l.api.mustNotHaveFailed(t)
	awaitWhole(t)
}

// TestEtcdRotation replaces the authority of the etcd members as docs/operations.md describes: no call, request or event fails, and the members
// accept certificates of the next authority only.
func TestEtcdRotation(t *testing.T) {
	s := setUp(t)
	former := etcdAuthority(t)
	l := startSteadyLoad(t, s, true)
	if err := node.Script(t.Context(), "rotate-etcd-ca.sh"); err != nil {
		t.Fatal(err)
	}
	awaitWhole(t)
	l.stop(t)
	l.requests.mustNotHaveFailed(t)
	l.events.mustNotHaveFailed(t)
	l.api.mustNotHaveFailed(t)

	next := etcdAuthority(t)
	if next.Leaf.Equal(former.Leaf) {
		t.Fatal("the authority is the former one")
	}
	pods, err := node.ServerPods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		for _, port := range []string{"2379", "2380"} {
			address := net.JoinHostPort(pods[i].Status.PodIP, port)
			eventually(t, patience, pods[i].Name+" accepts a certificate of the next authority at port "+port, func(ctx context.Context) error {
				return callEtcd(ctx, address, next, next)
			})
			// The member may close the connection before its client has read why.
			eventually(t, patience, pods[i].Name+" rejects a certificate of the former authority at port "+port, func(ctx context.Context) error {
				err := callEtcd(ctx, address, next, former)
				switch {
				case err == nil:
					t.Errorf("%s %s accepts a certificate of the former authority", pods[i].Name, port)
				case strings.Contains(err.Error(), "certificate"):
					err = nil
				}
				return err
			})
		}
	}
}

// etcdAuthority returns the authority of the etcd members, which must be the only one.
func etcdAuthority(t *testing.T) *tls.Certificate {
	t.Helper()
	secret, err := node.Host.CoreV1().Secrets(harness.SystemNamespace).Get(t.Context(), "knative-apiserver-etcd-ca", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if trusted := secret.Data["ca.crt"]; len(secret.Data) != 3 || !bytes.Equal(trusted, secret.Data[corev1.TLSCertKey]) {
		t.Fatalf("the Secret has %d keys and trusts\n%s", len(secret.Data), trusted)
	}
	authority, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		t.Fatal(err)
	}
	return &authority
}

// callEtcd sends a request to a member whose certificate is one of an authority, with a client certificate of another.
func callEtcd(ctx context.Context, address string, trusted, signer *tls.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, signer.Leaf, key.Public(), signer.PrivateKey)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AddCert(trusted.Leaf)
	own := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	client := &http.Client{Timeout: attemptLimit, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: "localhost",
		// Certificates would be omitted if the member names other authorities.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil },
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/version", http.NoBody)
	if err != nil {
		return err
	}
	_, err = do(client, request, http.StatusOK)
	return err
}

// verified returns an error unless the host verifies the server by the Secret, and each replica presents a certificate of the authority that signs.
func verified(ctx context.Context, secret *corev1.Secret) error {
	all, err := node.Admin.Registrations(ctx)
	if err != nil {
		return err
	}
	for _, service := range all {
		text, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle")
		if current, err := base64.StdEncoding.DecodeString(text); err != nil || !bytes.Equal(current, secret.Data["ca.crt"]) {
			return fmt.Errorf("the caBundle of %s is another one", service.GetName())
		}
	}
	pods, err := node.ServerPods(ctx)
	if err != nil {
		return err
	}
	signer := x509.NewCertPool()
	signer.AppendCertsFromPEM(secret.Data[corev1.TLSCertKey])
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: signer, ServerName: harness.ServerName + "." + harness.SystemNamespace + ".svc"}}
	for i := range pods {
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(pods[i].Status.PodIP, "8443"))
		if err != nil {
			return fmt.Errorf("%s: %w", pods[i].Name, err)
		}
		conn.Close()
	}
	return nil
}
