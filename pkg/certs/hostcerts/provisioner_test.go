package hostcerts

import (
	"crypto/x509"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// pass advances the clock and waits until all due timers have fired.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestIssued covers certificates of the authority: only changed ones are issued, and certificates are renewed before they expire.
func TestIssued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		a, b := owner("Route", "a"), owner("Route", "b")
		f.Set(t.Context(), a, []Request{{Host: "a"}, {Host: "v1-a"}})
		if !f.State("a").Ready || !f.State("v1-a").Ready || f.State("b").Ready {
			t.Errorf("states are %+v, %+v, %+v", f.State("a"), f.State("v1-a"), f.State("b"))
		}
		first := f.store.get("a")
		f.Set(t.Context(), a, []Request{{Host: "a"}, {Host: "v2-a"}})
		if got := f.store.hosts(); !slices.Equal(got, []string{"a", "v2-a"}) || f.store.get("a") != first {
			t.Errorf("the gateway has %v, want the requested ones, and the same for a", got)
		}
		updates := f.store.updates
		f.Set(t.Context(), a, []Request{{Host: "a"}, {Host: "v2-a"}})
		if f.store.updates != updates {
			t.Error("the same requests update the gateway")
		}

		// A host name moves from one Route to another: the order of the two does not matter.
		f.Set(t.Context(), b, []Request{{Host: "a"}})
		f.Set(t.Context(), a, nil)
		if got := f.store.hosts(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("the gateway has %v, want the certificate of the new owner", got)
		}
		pass(leafValidity*2/3 - time.Hour)
		if f.store.get("a") != first {
			t.Error("the certificate was replaced early")
		}
		pass(2 * time.Hour)
		renewed := f.store.get("a")
		if renewed == first || time.Until(renewed.Leaf.NotAfter) < leafValidity-time.Hour {
			t.Errorf("the certificate is valid until %s, want a renewed one", renewed.Leaf.NotAfter)
		}
		f.Set(t.Context(), b, nil)
		if got := f.store.hosts(); len(got) > 0 {
			t.Errorf("the gateway has %v, want none", got)
		}
	})
}

// TestSecret covers certificates of Secrets: changes are followed, and the last valid certificate remains, with the reason.
func TestSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newFixture(t), newIssuer(t)
		mapping := owner("DomainMapping", "shop.example.com")
		f.Set(t.Context(), mapping, []Request{{Host: "shop.example.com", Secret: "shop"}})
		if got := f.State("shop.example.com"); got.Ready || got.Problem != `Secret "shop" cannot be used: it does not exist` {
			t.Errorf("state %+v without a Secret", got)
		}
		f.secrets.put("shop", i.valid(t, "shop.example.com"))
		pass(6 * time.Second)
		first := f.store.get("shop.example.com")
		if got := f.State("shop.example.com"); got != (State{Ready: true}) || first == nil {
			t.Fatalf("state %+v with a valid Secret", got)
		}
		if got := f.notifications(); !slices.Equal(got, []Owner{mapping}) {
			t.Errorf("notified %v, want the owner once", got)
		}

		garbage := i.valid(t, "shop.example.com")
		garbage.Data["tls.crt"] = []byte("garbage")
		expired := func() *corev1.Secret {
			key := ecKey(t)
			return i.certificate(t, "shop.example.com", -time.Hour, key, key.Public())
		}
		weak, strong := rsaKey(t, 1024), rsaKey(t, 5120)
		mixed := i.valid(t, "shop.example.com")
		mixed.Data["tls.key"] = i.valid(t, "shop.example.com").Data["tls.key"]
		opaque := i.valid(t, "shop.example.com")
		opaque.Type = corev1.SecretTypeOpaque
		huge := i.valid(t, "shop.example.com")
		huge.Data["tls.crt"] = append(huge.Data["tls.crt"], make([]byte, maxChain)...)
		for problem, s := range map[string]*corev1.Secret{
			"must be a certificate and its key in PEM":  garbage,
			"its certificate expired at":                expired(),
			"its certificate must be for the host name": i.valid(t, "other.example.com"),
			"private key does not match public key":     mixed,
			"its type must be kubernetes.io/tls":        opaque,
			"it must have the keys tls.crt and tls.key": {Type: corev1.SecretTypeTLS},
			"tls.crt may have at most 65536 bytes":      huge,
			"must have 2048 to 4096 bits, not 1024":     i.certificate(t, "shop.example.com", time.Hour, weak, weak.Public()),
			"must have 2048 to 4096 bits, not 5120":     i.certificate(t, "shop.example.com", time.Hour, strong, strong.Public()),
			"it does not exist":                         nil,
		} {
			f.secrets.put("shop", s)
			pass(6 * time.Second)
			got := f.State("shop.example.com")
			if !got.Ready || !got.Outdated || !strings.Contains(got.Problem, problem) || !strings.HasSuffix(got.Problem, "the previous certificate is still served") {
				t.Errorf("state %+v, want %q", got, problem)
			}
			if f.store.get("shop.example.com") != first {
				t.Errorf("%s: the gateway lost the last valid certificate", problem)
			}
		}
		f.secrets.fault = errors.New("unreachable")
		before := f.State("shop.example.com")
		pass(6 * time.Second)
		if f.State("shop.example.com") != before || f.store.get("shop.example.com") != first {
			t.Error("an unreachable API changed the state")
		}
		f.secrets.fault = nil
		f.secrets.put("shop", i.valid(t, "shop.example.com"))
		pass(6 * time.Second)
		if got := f.State("shop.example.com"); got != (State{Ready: true}) || f.store.get("shop.example.com") == first {
			t.Errorf("state %+v after the Secret is valid again, want its certificate", got)
		}
		// It expires in its Secret.
		pass(secretValidity)
		if got := f.State("shop.example.com"); !got.Ready || !strings.Contains(got.Problem, "expired") {
			t.Errorf("state %+v after the certificate expired", got)
		}
		f.Set(t.Context(), mapping, nil)
		if len(f.store.hosts()) > 0 || len(f.Provisioner.secrets) > 0 {
			t.Errorf("the gateway has %v, Secrets %v are followed; want none", f.store.hosts(), f.Provisioner.secrets)
		}
	})
}

// TestMemoryOfSecrets checks that the additional data of a Secret with a certificate is not kept in memory: each tenant may name any number
// of Secrets.
func TestMemoryOfSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newFixture(t), newIssuer(t)
		other := i.valid(t, "b.example.com")
		other.Data["other"], other.Annotations = make([]byte, 1<<20), map[string]string{"a": strings.Repeat("a", 1<<18)}
		chain := i.valid(t, "c.example.com")
		chain.Data["tls.crt"], chain.Data["tls.key"] = make([]byte, 1<<19), make([]byte, 1<<19)
		opaque := i.valid(t, "a.example.com")
		opaque.Type = corev1.SecretTypeOpaque
		for name, s := range map[string]*corev1.Secret{"a": opaque, "b": other, "c": chain} {
			f.secrets.put(name, s)
			f.Set(t.Context(), owner("DomainMapping", name), []Request{{Host: name + ".example.com", Secret: name}})
		}
		if !f.State("b.example.com").Ready {
			t.Errorf("state %+v", f.State("b.example.com"))
		}
		f.Provisioner.mu.Lock()
		defer f.Provisioner.mu.Unlock()
		for key, s := range f.Provisioner.secrets {
			if size := s.content.Size(); size > maxChain+maxKey+1<<10 {
				t.Errorf("%s: %d bytes are held", key, size)
			}
		}
	})
}

// TestSelfSigned checks that a self-signed certificate is served, and that the state reports that clients may reject it.
func TestSelfSigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newFixture(t), newIssuer(t)
		i.cert = &x509.Certificate{SerialNumber: big.NewInt(1)}
		f.secrets.put("shop", i.certificate(t, "shop.example.com", time.Hour, i.key, i.key.Public()))
		f.Set(t.Context(), owner("DomainMapping", "shop.example.com"), []Request{{Host: "shop.example.com", Secret: "shop"}})
		if got := f.State("shop.example.com"); !got.Ready || !strings.Contains(got.Problem, "is self-signed") {
			t.Errorf("state %+v", got)
		}
	})
}

// TestSelfSignedInstead checks that a self-signed certificate does not replace a valid one of an authority in a Secret, but replaces an
// expired one, another self-signed one, and one that is not from a Secret.
func TestSelfSignedInstead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const host = "shop.example.com"
		f, i := newFixture(t), newIssuer(t)
		selfSigned := func() *corev1.Secret {
			own := &issuer{cert: &x509.Certificate{SerialNumber: big.NewInt(1)}, key: ecKey(t)}
			return own.certificate(t, host, 10*secretValidity, own.key, own.key.Public())
		}
		mapping := owner("DomainMapping", host)
		replaced := func(s *corev1.Secret) {
			t.Helper()
			before := f.store.get(host)
			f.secrets.put("shop", s)
			f.Set(t.Context(), mapping, []Request{{Host: host, Secret: "shop"}})
			pass(6 * time.Second)
			if got := f.State(host); !got.Ready || got.Outdated || !strings.Contains(got.Problem, `the certificate in Secret "shop" is self-signed`) || f.store.get(host) == before {
				t.Errorf("state %+v, want the new certificate", got)
			}
		}
		f.Set(t.Context(), mapping, []Request{{Host: host}})
		replaced(selfSigned())
		replaced(selfSigned())

		f.secrets.put("shop", i.valid(t, host))
		pass(6 * time.Second)
		signed := f.store.get(host)
		if got := f.State(host); got != (State{Ready: true}) {
			t.Fatalf("state %+v with a certificate of an authority", got)
		}
		kept := func(secret string) {
			t.Helper()
			got, want := f.State(host), `Secret "`+secret+`" cannot be used: its certificate is self-signed, and the previous one is not; the previous certificate is still served`
			if got != (State{Ready: true, Outdated: true, Problem: want}) || f.store.get(host) != signed {
				t.Errorf("state %+v, want %q and the previous certificate", got, want)
			}
		}
		f.notifications()
		f.secrets.put("shop", selfSigned())
		pass(6 * time.Second)
		kept("shop")
		if got := f.notifications(); !slices.Equal(got, []Owner{mapping}) {
			t.Errorf("notified %v, want the owner once", got)
		}
		// Invalid content in between changes nothing.
		f.secrets.put("shop", nil)
		pass(6 * time.Second)
		f.secrets.put("shop", selfSigned())
		pass(6 * time.Second)
		kept("shop")
		f.secrets.put("other", selfSigned())
		f.Set(t.Context(), mapping, []Request{{Host: host, Secret: "other"}})
		kept("other")

		// The kept one expires.
		pass(secretValidity)
		if got := f.State(host); !got.Ready || got.Outdated || !strings.Contains(got.Problem, `the certificate in Secret "other" is self-signed`) || f.store.get(host) == signed {
			t.Errorf("state %+v after the previous certificate expired, want the self-signed one", got)
		}
		f.secrets.put("other", i.valid(t, host))
		pass(6 * time.Second)
		if got := f.State(host); got != (State{Ready: true}) {
			t.Errorf("state %+v with a certificate of an authority again", got)
		}
	})
}

// TestSecretOfAnother checks that the certificate of one tenant does not remain for a host name that moves to another tenant.
func TestSecretOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newFixture(t), newIssuer(t)
		f.secrets.put("shop", i.valid(t, "shop.example.com"))
		first, second := owner("DomainMapping", "shop.example.com"), owner("DomainMapping", "shop.example.com")
		second.Key.Namespace = "other"
		f.Set(t.Context(), first, []Request{{Host: "shop.example.com", Secret: "shop"}})
		f.Set(t.Context(), second, []Request{{Host: "shop.example.com", Secret: "shop"}})
		f.Set(t.Context(), first, nil)
		if got := f.State("shop.example.com"); got.Ready || len(f.store.hosts()) > 0 {
			t.Errorf("state %+v, certificates of %v; want none of the previous owner", got, f.store.hosts())
		}
	})
}
