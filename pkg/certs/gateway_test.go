package certs

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// mount writes the Secret of the gateways into a directory, as a kubelet does.
func mount(t *testing.T, m *Manager, dir string) map[string][]byte {
	t.Helper()
	secret, err := m.options.Client.CoreV1().Secrets(namespace).Get(t.Context(), "knative-gateway-certificate", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range secret.Data {
		if err := replace(filepath.Join(dir, name), content); err != nil {
			t.Fatal(err)
		}
	}
	return secret.Data
}

// keep keeps the certificate of the gateways until the test ends.
func keep(t *testing.T, m *Manager) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.KeepGatewayCertificate(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	synctest.Wait()
}

// openMounted reads the certificate in a directory and follows it until the test ends.
func openMounted(t *testing.T, dir string) *Mounted {
	t.Helper()
	mounted := NewMounted(dir, clock.RealClock{}, klog.Background())
	if err := mounted.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		mounted.Follow(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return mounted
}

// The certificate of gateways identifies a gateway, and no other replica.
func TestGatewayCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newHost(), nil)
		keep(t, m)
		dir := t.TempDir()
		mount(t, m, dir)
		gateway := openMounted(t, dir)
		if err := handshake(m.PeerTLS(GatewayName), gateway.PeerTLS(GatewayName)); err != nil {
			t.Errorf("a replica refuses a gateway: %v", err)
		}
		if err := handshake(gateway.PeerTLS(GatewayName), gateway.PeerTLS(GatewayName)); err != nil {
			t.Errorf("a gateway refuses a gateway: %v", err)
		}
		if err := handshake(gateway.PeerTLS(GatewayName), m.PeerTLS(GatewayName)); err != nil {
			t.Errorf("a gateway refuses a replica: %v", err)
		}
		if err := handshake(m.PeerTLS(), gateway.PeerTLS()); err == nil {
			t.Error("a gateway is accepted as a replica with all permissions")
		}
		leaf := gateway.current.Load().certificate.Leaf
		for _, name := range []string{PeerName, apiHost, "localhost"} {
			if leaf.VerifyHostname(name) == nil {
				t.Errorf("the certificate of gateways is valid for %s", name)
			}
		}
		if leaf.IsCA {
			t.Error("gateways can issue certificates")
		}
	})
}

// The certificate is renewed, also with a new authority, and gateways follow the files.
func TestGatewayCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newHost(), func(o *Options) { o.LeafValidity = 30 * time.Hour })
		keep(t, m)
		dir := t.TempDir()
		first := mount(t, m, dir)
		gateway := openMounted(t, dir)
		serving := gateway.ServingCertificate()
		var notified listener
		serving.AddListener(&notified)

		time.Sleep(19 * time.Hour) //nolint:forbidigo // the clock is synctest's
		if now := mount(t, m, dir); !bytes.Equal(now[corev1.TLSCertKey], first[corev1.TLSCertKey]) {
			t.Error("the certificate was renewed early")
		}
		time.Sleep(2 * time.Hour) //nolint:forbidigo // the clock is synctest's
		renewed := mount(t, m, dir)
		if bytes.Equal(renewed[corev1.TLSCertKey], first[corev1.TLSCertKey]) || bytes.Equal(renewed[corev1.TLSPrivateKeyKey], first[corev1.TLSPrivateKeyKey]) {
			t.Error("certificate or key is the same after two thirds of its validity")
		}
		time.Sleep(2 * reread) //nolint:forbidigo // the clock is synctest's
		if cert, key := serving.CurrentCertKeyContent(); !bytes.Equal(cert, renewed[corev1.TLSCertKey]) || !bytes.Equal(key, renewed[corev1.TLSPrivateKeyKey]) || notified.calls.Load() != 1 {
			t.Errorf("the gateway does not use the new certificate, %d notifications", notified.calls.Load())
		}

		// A file that is not complete yet changes nothing.
		if err := os.WriteFile(filepath.Join(dir, corev1.TLSCertKey), []byte("partial"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * reread) //nolint:forbidigo // the clock is synctest's
		if cert, _ := serving.CurrentCertKeyContent(); !bytes.Equal(cert, renewed[corev1.TLSCertKey]) {
			t.Error("the gateway uses a damaged certificate")
		}

		// A deleted Secret is written again.
		if err := m.options.Client.CoreV1().Secrets(namespace).Delete(t.Context(), "knative-gateway-certificate", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * gatewayCheck) //nolint:forbidigo // the clock is synctest's
		mount(t, m, dir)
		time.Sleep(2 * reread) //nolint:forbidigo // the clock is synctest's
		if err := handshake(m.PeerTLS(GatewayName), gateway.PeerTLS(GatewayName)); err != nil {
			t.Error(err)
		}
	})
}

// Only the leader writes the certificate, and a gateway waits for it.
func TestGatewayCertificateWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newHost(), func(o *Options) { o.Leading = func() bool { return false } })
		keep(t, m)
		time.Sleep(time.Minute) //nolint:forbidigo // the clock is synctest's
		secrets, err := m.options.Client.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range secrets.Items {
			if secret.Name == "knative-gateway-certificate" {
				t.Error("a replica that does not lead wrote the certificate of gateways")
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := NewMounted(t.TempDir(), clock.RealClock{}, klog.Background()).Start(ctx); err == nil {
			t.Error("a gateway started without a certificate")
		}
	})
}
