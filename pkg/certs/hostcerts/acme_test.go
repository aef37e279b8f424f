package hostcerts

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
)

// fakeACME is an ACME server that a test controls.
type fakeACME struct {
	mu           sync.Mutex
	required     map[string]string
	certificates map[string]*tls.Certificate
	challenges   map[string]*Challenge
	changed      func([]string)
}

func (*fakeACME) Await(context.Context)   {}
func (*fakeACME) Run(ctx context.Context) { <-ctx.Done() }

func (f *fakeACME) Require(host, namespace string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.required[host] = namespace
}

func (f *fakeACME) Release(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.required, host)
}

func (f *fakeACME) Certificate(host string) (*tls.Certificate, State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.certificates[host]; c != nil {
		return c, State{Ready: true}
	}
	return nil, State{Problem: "pending"}
}

func (f *fakeACME) Challenge(host string) *Challenge {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.challenges[host]
}

func (f *fakeACME) Subscribe(changed func([]string)) { f.changed = changed }

// put changes the challenge and the certificate of a host name.
func (f *fakeACME) put(host string, c *Challenge, certificate *tls.Certificate) {
	f.mu.Lock()
	f.challenges[host], f.certificates[host] = c, certificate
	f.mu.Unlock()
	f.changed([]string{host})
}

func newFakeACME() *fakeACME {
	return &fakeACME{required: map[string]string{}, certificates: map[string]*tls.Certificate{}, challenges: map[string]*Challenge{}}
}

// parsed returns the certificate of a Secret.
func parsed(t *testing.T, i *issuer, host string) *tls.Certificate {
	t.Helper()
	certificate, err := parseSecret(i.valid(t, host), host, time.Now().Add(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

// TestACMEStream covers certificates and challenges of an ACME server, at the gateway of the replica and at one that receives them by a stream.
func TestACMEStream(t *testing.T) {
	i := newIssuer(t)
	c := newControl(t, i, "")
	a := c.acme
	const host = "a.example.com"
	route := owner("Route", "a")
	c.Set(t.Context(), route, []Request{{Host: host, ACME: true}})
	if a.required[host] != "default" || c.State(host) != (State{Problem: "pending"}) {
		t.Errorf("required %v, state %+v", a.required, c.State(host))
	}
	r, gateway := newGateway(t, i.peerTLS(t, "knative-gateways"), c.address)
	<-r.Synced()

	both := func(what string, condition func(*fakeStore) bool) {
		t.Helper()
		gateway.await(t, what, func() bool {
			gateway.mu.Lock()
			defer gateway.mu.Unlock()
			return condition(&gateway.fakeStore)
		})
		c.store.mu.Lock()
		defer c.store.mu.Unlock()
		if !condition(c.store) {
			t.Errorf("%s: the own gateway has %v, %v", what, c.store.http, c.store.tls)
		}
	}
	a.put(host, &Challenge{Token: "t", Response: "t.r"}, nil)
	both("a challenge by HTTP-01", func(s *fakeStore) bool { return s.http[host] == "t t.r" && s.tls[host] == nil })
	a.put(host, &Challenge{Token: "u", Response: "u.r", TLS: true}, nil)
	both("a challenge by TLS-ALPN-01", func(s *fakeStore) bool { return s.http[host] == "" && s.tls[host] != nil })
	certificate := parsed(t, i, host)
	a.put(host, nil, certificate)
	both("a certificate", func(s *fakeStore) bool {
		return len(s.http)+len(s.tls) == 0 && s.held[host] != nil && slices.Equal(s.held[host].Certificate[0], certificate.Certificate[0])
	})
	if got := c.State(host); got != (State{Ready: true}) {
		t.Errorf("the state is %+v", got)
	}
	if got := c.notifications(); !slices.Contains(got, route) {
		t.Errorf("notified %v", got)
	}

	a.put(host, &Challenge{Token: "v", Response: "v.r"}, certificate)
	both("a challenge of the renewal", func(s *fakeStore) bool { return s.http[host] == "v v.r" && s.held[host] != nil })
	c.Set(t.Context(), route, nil)
	both("no request", func(s *fakeStore) bool { return len(s.http)+len(s.tls)+len(s.held) == 0 })
	if len(a.required) > 0 {
		t.Errorf("still required: %v", a.required)
	}
}

// TestACMEClass checks that the certificate of the own authority remains until the ACME server has issued one.
func TestACMEClass(t *testing.T) {
	f, i := newFixture(t), newIssuer(t)
	a := f.acme
	const host = "a.example.com"
	route := owner("Route", "a")
	f.Set(t.Context(), route, []Request{{Host: host}})
	own := f.store.get(host)
	f.Set(t.Context(), route, []Request{{Host: host, ACME: true}})
	if got := f.State(host); f.store.get(host) != own || !got.Ready || !got.Outdated || got.Problem != "pending" {
		t.Errorf("the state is %+v", got)
	}
	certificate := parsed(t, i, host)
	a.put(host, nil, certificate)
	if f.store.get(host) != certificate || f.State(host) != (State{Ready: true}) {
		t.Errorf("the state is %+v", f.State(host))
	}
	f.Set(t.Context(), route, []Request{{Host: host}})
	if got := f.store.get(host); got == certificate || len(a.required) > 0 || f.State(host) != (State{Ready: true}) {
		t.Errorf("the state is %+v, required %v", f.State(host), a.required)
	}
}

// TestWithoutACME covers a server without an ACME client.
func TestWithoutACME(t *testing.T) {
	p := NewProvisioner(Options{Authority: certs.NewHostAuthority(certs.HostOptions{Dir: t.TempDir(), Logger: klog.Background()}), Clock: clock.RealClock{}, Logger: klog.Background()})
	p.Set(t.Context(), owner("Route", "a"), []Request{{Host: "a", ACME: true}})
	if got := p.State("a"); got.Ready || !got.Failed {
		t.Errorf("the state is %+v", got)
	}
}

// TestChallengeCertificate covers the certificate of a challenge by TLS-ALPN-01 (RFC 8737 3).
func TestChallengeCertificate(t *testing.T) {
	c, err := challengeCertificate("a.example.com", "token.thumbprint", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256([]byte("token.thumbprint"))
	want, err := asn1.Marshal(digest[:])
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, e := range leaf.Extensions {
		if e.Id.Equal(acmeIdentifier) {
			found = e.Critical && slices.Equal(e.Value, want)
		}
	}
	if !found || !slices.Equal(leaf.DNSNames, []string{"a.example.com"}) {
		t.Errorf("the certificate is for %v with the extensions %v", leaf.DNSNames, leaf.Extensions)
	}
	store := &fakeStore{}
	for _, c := range []*Challenge{{}, {Token: "t", Response: string(make([]byte, maxChallenge+1))}} {
		if err := answer(store, "a", c, time.Now()); err == nil || len(store.http)+len(store.tls) > 0 {
			t.Errorf("an invalid challenge is answered: %v", err)
		}
	}
}
