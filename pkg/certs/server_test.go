package certs

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// greet performs a handshake with a server, and verifies its certificate against a bundle.
func greet(t *testing.T, c *ServerCertificate, name string, bundle []byte) error {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("bundle %q has no certificate", bundle)
	}
	near, far := net.Pipe()
	defer near.Close()
	go func() {
		defer far.Close()
		_ = tls.Server(far, c.TLS()).HandshakeContext(t.Context())
	}()
	// A client that rejects the certificate in the handshake writes an alert, for which a pipe has no buffer.
	client := tls.Client(near, &tls.Config{InsecureSkipVerify: true})
	if err := client.HandshakeContext(t.Context()); err != nil {
		return err
	}
	_, err := client.ConnectionState().PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: time.Now()})
	return err
}

// TestServerCertificate covers the names of a server's certificate, and checks that clients that follow the bundle never get a certificate
// that they do not trust while the authority rotates, from any replica.
func TestServerCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		leader, _ := start(t, client, nil)
		follower, _ := start(t, client, func(o *Options) { o.Leading = func() bool { return false } })
		const long, short = "broker-ingress.kn.svc.corp.example", "broker-ingress.kn.svc"
		servers := []*ServerCertificate{leader.ServerCertificate(long, short), follower.ServerCertificate(long, short)}
		changes := 0
		bundle := leader.Bundle()
		leader.Subscribe(func() { changes, bundle = changes+1, leader.Bundle() })
		synctest.Wait()
		old := bundle
		askForRotation(t, client, "now")
		for second := range 30 {
			for i, s := range servers {
				for _, name := range []string{long, short} {
					if err := greet(t, s, name, bundle); err != nil {
						t.Fatalf("after %d s, replica %d as %s: %v", second, i, name, err)
					}
				}
			}
			pass(time.Second)
		}
		if changes < 2 {
			t.Errorf("the bundle changed %d times, want an addition and a removal", changes)
		}
		for _, s := range servers {
			if err := greet(t, s, long, old); err == nil {
				t.Error("a client that only trusts the old authority accepts the certificate after the rotation")
			}
			if err := greet(t, s, "knative-apiserver.kn.svc", bundle); err == nil {
				t.Error("the certificate is accepted for another name")
			}
		}
	})
}

// TestServerCertificateRenewal checks that handshakes use a new certificate after two thirds of its validity.
func TestServerCertificateRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newHost(), func(o *Options) { o.LeafValidity = time.Minute })
		c := m.ServerCertificate("localhost")
		held, err := c.get()
		if err != nil {
			t.Fatal(err)
		}
		pass(30 * time.Second)
		if same, err := c.get(); err != nil || same != held {
			t.Errorf("the certificate is replaced early: %v", err)
		}
		pass(15 * time.Second)
		if next, err := c.get(); err != nil || !next.TLS.Leaf.NotAfter.After(held.TLS.Leaf.NotAfter) {
			t.Errorf("the certificate is not renewed: %v", err)
		}
	})
}

// TestServerCertificateOfHostAuthority covers the certificate of a server by its address, without a host cluster.
func TestServerCertificateOfHostAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := startHostAuthority(t, HostOptions{Dir: t.TempDir()})
		c := a.ServerCertificate([]net.IP{net.IPv4(127, 0, 0, 1)}, "localhost")
		if _, err := c.get(); err == nil {
			t.Error("there is a certificate before there is an authority")
		}
		a.Await(t.Context())
		for _, name := range []string{"127.0.0.1", "localhost"} {
			if err := greet(t, c, name, a.Bundle()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
