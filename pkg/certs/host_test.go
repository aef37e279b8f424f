package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
)

// startHostAuthority returns an authority that runs until the test ends, or until the returned function is called.
func startHostAuthority(t *testing.T, o HostOptions) (*HostAuthority, func()) {
	t.Helper()
	o.Namespace, o.Logger = namespace, klog.Background()
	a := NewHostAuthority(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	stop := func() { cancel(); <-done }
	t.Cleanup(stop)
	return a, stop
}

// verifyHost verifies a certificate against a bundle.
func verifyHost(t *testing.T, c *HostCertificate, host string, bundle []byte) {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("bundle %q has no certificate", bundle)
	}
	if _, err := c.TLS.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, CurrentTime: time.Now()}); err != nil {
		t.Errorf("certificate of %s: %v", host, err)
	}
}

func issueHost(t *testing.T, a *HostAuthority, host string) *HostCertificate {
	t.Helper()
	a.Await(t.Context())
	c, err := a.Issue(host)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestHostAuthority covers that the authority is created by the first request, published in a ConfigMap, read by other replicas, and rotates
// so that users of the ConfigMap trust all certificates all the time.
func TestHostAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		a, _ := startHostAuthority(t, HostOptions{Client: client})
		pass(time.Minute)
		if len(client.Actions()) > 0 {
			t.Errorf("without a request there are %v, want none", client.Actions())
		}
		const long = "a-name-that-is-longer-than-a-common-name-may-be.in-some-namespace.example.com"
		first := issueHost(t, a, long)
		if leaf := first.TLS.Leaf; time.Until(leaf.NotAfter).Round(time.Minute) != 90*24*time.Hour || leaf.Subject.CommonName != "" {
			t.Errorf("the certificate is for %q until %s, want 90 days without a common name", leaf.Subject.CommonName, leaf.NotAfter)
		}
		if got := issueHost(t, a, "short.example.com").TLS.Leaf.Subject.CommonName; got != "short.example.com" {
			t.Errorf("common name %q", got)
		}
		published := func() []byte {
			configMap, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), HostAuthorityName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return []byte(configMap.Data["ca.crt"])
		}
		pass(10 * time.Second)
		verifyHost(t, first, long, published())

		changes := 0
		b := NewHostAuthority(HostOptions{Client: client, Namespace: namespace, Leading: func() bool { return false }, Logger: klog.Background()})
		b.Subscribe(func() { changes++ })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.Run(ctx)
		verifyHost(t, issueHost(t, b, "b"), "b", published())

		secret, err := client.CoreV1().Secrets(namespace).Get(t.Context(), HostAuthorityName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		metav1.SetMetaDataAnnotation(&secret.ObjectMeta, RotateAnnotation, "now")
		if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		for range 26 {
			pass(time.Hour)
			verifyHost(t, first, long, published())
			verifyHost(t, issueHost(t, b, "b"), "b", published())
		}
		if a.Current(first) || b.Current(first) || changes != 3 {
			t.Errorf("a certificate of the previous signer is current, or %d changes were notified, want 3", changes)
		}
		for range 26 {
			pass(time.Hour)
			verifyHost(t, issueHost(t, b, "b"), "b", published())
		}
		if strings.Count(string(published()), "BEGIN CERTIFICATE") != 1 {
			t.Error("after the rotation the previous authority is still published")
		}
	})
}

// TestTicketKeys covers that all replicas have the same keys of session tickets, that the leader replaces them, that each one is known before it encrypts
// and decrypts as long afterwards, and that an authority of an earlier release gets some.
func TestTicketKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		a, _ := startHostAuthority(t, HostOptions{Client: client})
		pass(time.Minute)
		if keys := a.TicketKeys(); keys != nil {
			t.Errorf("without a request there are %d keys, want none", len(keys))
		}
		a.Require()
		pass(time.Minute)
		b, _ := startHostAuthority(t, HostOptions{Client: client, Leading: func() bool { return false }})
		b.Require()
		pass(time.Minute)
		before := a.TicketKeys()
		if len(before) != 2 || before[0] == before[1] {
			t.Fatalf("%d keys, want two", len(before))
		}
		for range 5 {
			if !slices.Equal(a.TicketKeys(), b.TicketKeys()) {
				t.Error("two replicas have different keys")
			}
			pass(ticketPeriod - 10*time.Minute)
			if !slices.Equal(a.TicketKeys(), before) {
				t.Error("keys were replaced early")
			}
			pass(10 * time.Minute)
			now := a.TicketKeys()
			if len(now) != 3 || now[0] != before[1] || now[2] != before[0] || slices.Contains(before, now[1]) {
				t.Errorf("after a period the keys are not the next one, a new one and the previous one")
			}
			before = now
		}
		bundle := string(a.Bundle())
		for _, content := range []string{"", "{}", `{"since":"2000-01-01T00:00:00Z","keys":["AA==","AA=="]}`, `{"since":"2900-01-01T00:00:00Z","keys":[]}`} {
			secret, err := client.CoreV1().Secrets(namespace).Get(t.Context(), HostAuthorityName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			secret.Data[ticketsKey] = []byte(content)
			if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
			if keys := b.TicketKeys(); len(keys) != 2 || !slices.Equal(keys, a.TicketKeys()) || keys[0] == before[0] {
				t.Errorf("with %q there are %d keys, want two new ones", content, len(keys))
			}
		}
		if string(a.Bundle()) != bundle {
			t.Error("the authority has changed")
		}
	})
}

// TestTicketsAfterClockChange covers keys that were made while the clock was wrong.
func TestTicketsAfterClockChange(t *testing.T) {
	now := time.Now()
	for since, want := range map[time.Duration]bool{0: false, time.Hour: false, 13 * time.Hour: true, -11 * time.Hour: false, -12 * time.Hour: true} {
		if due := !now.Before(newTickets(now.Add(since)).due(now)); due != want {
			t.Errorf("keys since %v: due %v, want %v", since, due, want)
		}
	}
}

// TestHostAuthorityUnavailable covers that requests wait once, for a limited time, for an authority that cannot be read.
func TestHostAuthorityUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// Nothing maintains it.
		a := NewHostAuthority(HostOptions{Client: fake.NewClientset(), Namespace: namespace, Logger: klog.Background()})
		for _, want := range []time.Duration{hostPatience, 0} {
			began := time.Now()
			a.Await(t.Context())
			if got := time.Since(began); got != want {
				t.Errorf("waited for %s, want %s", got, want)
			}
		}
		if _, err := a.Issue("a"); !errors.Is(err, ErrNoHostAuthority) {
			t.Errorf("Issue returns %v", err)
		}
	})
}

// TestHostAuthorityFile covers the authority of a server without a host cluster: it survives a restart and rotates when it is due.
func TestHostAuthorityFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		published := func() []byte {
			content, err := os.ReadFile(filepath.Join(dir, HostAuthorityFile))
			if err != nil {
				t.Fatal(err)
			}
			return content
		}
		a, stop := startHostAuthority(t, HostOptions{Dir: dir})
		first := issueHost(t, a, "a")
		verifyHost(t, first, "a", published())
		keys := a.TicketKeys()
		stop()
		if info, err := os.Stat(filepath.Join(dir, "host-ca.json")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the file with the key: %v, %v; want it readable for the user only", info, err)
		}

		a, _ = startHostAuthority(t, HostOptions{Dir: dir})
		issueHost(t, a, "a")
		if !a.Current(first) || !slices.Equal(a.TicketKeys(), keys) {
			t.Error("after a restart certificates are signed by another authority, or session tickets have other keys")
		}
		pass(4 * 365 * 24 * time.Hour)
		pass(48 * time.Hour)
		if a.Current(first) {
			t.Error("the authority did not rotate")
		}
		verifyHost(t, issueHost(t, a, "a"), "a", published())
	})
}

// BenchmarkIssueHost issues a certificate, as for each of the host names at a restart.
func BenchmarkIssueHost(b *testing.B) {
	a := NewHostAuthority(HostOptions{Dir: b.TempDir(), Logger: klog.Background()})
	go a.Run(b.Context())
	a.Await(b.Context())
	for b.Loop() {
		if _, err := a.Issue("hello.default.example.com"); err != nil {
			b.Fatal(err)
		}
	}
}
