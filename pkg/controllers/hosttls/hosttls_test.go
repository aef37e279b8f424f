package hosttls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/certmanager"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// fakeCertificates gives all requested host names one state.
type fakeCertificates struct {
	state     hostcerts.State
	requested []hostcerts.Request
}

func (f *fakeCertificates) Set(_ context.Context, _ hostcerts.Owner, requests []hostcerts.Request) {
	f.requested = requests
}

func (f *fakeCertificates) State(string) hostcerts.State { return f.state }

func (*fakeCertificates) Subscribe(func(hostcerts.Owner)) {}

// TestSecret covers host names with a certificate in a Secret, which need neither external-domain-tls nor a supported class.
func TestSecret(t *testing.T) {
	for name, test := range map[string]struct {
		state            hostcerts.State
		redirect, serves bool
		condition        string
	}{
		"valid":       {state: hostcerts.State{Ready: true}, redirect: true, serves: true, condition: "True CertificateExternallyProvided TLS certificate was provided externally"},
		"self-signed": {state: hostcerts.State{Ready: true, Problem: "x"}, serves: true, condition: "True CertificateExternallyProvided TLS certificate was provided externally, but x"},
		"outdated":    {state: hostcerts.State{Ready: true, Outdated: true, Problem: "x"}, serves: true, condition: "False CertificateProvisionFailed Certificate a fails to be provisioned: x."},
		"missing":     {state: hostcerts.State{Problem: "x"}, condition: "False CertificateProvisionFailed Certificate a fails to be provisioned: x."},
	} {
		t.Run(name, func(t *testing.T) {
			certificates := &fakeCertificates{state: test.state}
			network := settings.Default("example.com").Network
			network.Redirect, network.CertificateClass = test.redirect, "unknown"
			f := Secure(t.Context(), certificates, nil, Object{Public: []string{"a"}, Secret: ptr.To("s")}, &network)
			if got := short(f.Condition("CertificateProvisioned")); got != test.condition {
				t.Errorf("the condition is %q, want %q", got, test.condition)
			}
			if f.Serves("a") != test.serves || f.Redirects("a") != test.redirect || !f.HTTPS("a") {
				t.Errorf("serves %v, redirects %v, URL is HTTPS: %v", f.Serves("a"), f.Redirects("a"), f.HTTPS("a"))
			}
			if want := []hostcerts.Request{{Host: "a", Secret: "s"}}; !slices.Equal(certificates.requested, want) {
				t.Errorf("requested %v, want %v", certificates.requested, want)
			}
		})
	}
}

// TestSecretWithoutName covers names that no Secret can have: there is no certificate of another source instead.
func TestSecretWithoutName(t *testing.T) {
	for _, secret := range []string{"", "../a", "Upper"} {
		certificates := &fakeCertificates{state: hostcerts.State{Ready: true}}
		network := settings.Default("example.com").Network
		network.ExternalDomainTLS = true
		f := Secure(t.Context(), certificates, nil, Object{Public: []string{"a"}, Secret: &secret}, &network)
		want := fmt.Sprintf("False CertificateProvisionFailed Certificate a fails to be provisioned: no Secret can have the name %q.", secret)
		if got := short(f.Condition("CertificateProvisioned")); got != want || f.Serves("a") || len(certificates.requested) > 0 {
			t.Errorf("%q: serves %v, requested %v, condition %q, want %q", secret, f.Serves("a"), certificates.requested, got, want)
		}
	}
}

// fakeManager gives all wanted Certificates one state.
type fakeManager struct {
	state  certmanager.State
	wanted []certmanager.Certificate
	issuer settings.Issuer
	// refused is the state of a write; err its error.
	refused *certmanager.State
	err     error
}

func (f *fakeManager) States(_ context.Context, _ *certmanager.Object, issuer settings.Issuer, wanted []certmanager.Certificate) map[string]certmanager.State {
	f.wanted, f.issuer = wanted, issuer
	states := map[string]certmanager.State{}
	for _, c := range wanted {
		states[c.Host] = f.state
	}
	return states
}

func (f *fakeManager) Apply(context.Context, *certmanager.Object, settings.Issuer, []certmanager.Certificate) (map[string]certmanager.State, error) {
	if f.refused == nil {
		return nil, f.err
	}
	return map[string]certmanager.State{"a": *f.refused}, f.err
}

func (*fakeManager) Subscribe(func(hostcerts.Owner)) {}

func (*fakeManager) Forget(hostcerts.Owner) {}

// TestCertManager covers the condition of host names whose certificates cert-manager issues.
func TestCertManager(t *testing.T) {
	valid, missing := hostcerts.State{Ready: true}, hostcerts.State{Problem: "it does not exist"}
	outdated := hostcerts.State{Ready: true, Outdated: true, Problem: "it expired"}
	for name, test := range map[string]struct {
		state    hostcerts.State
		managed  certmanager.State
		refused  *certmanager.State
		redirect bool
		// https is true if the URL is HTTPS.
		https     bool
		condition string
	}{
		"issued":              {state: valid, https: true, condition: "True"},
		"renewal fails":       {state: valid, managed: certmanager.State{Problem: "x", Failed: true}, redirect: true, https: true, condition: "True  Certificate a is ready, but x."},
		"pending":             {state: missing, managed: certmanager.State{Problem: "x"}, redirect: true, https: true, condition: "Unknown CertificateNotReady Certificate a is not ready: x."},
		"pending, downgrade":  {state: missing, managed: certmanager.State{Problem: "x"}, condition: "True HTTPDowngrade Certificate a is not ready downgrade HTTP. The host is served without TLS until it is: x."},
		"no API":              {state: missing, managed: certmanager.State{Problem: "x", Failed: true}, redirect: true, https: true, condition: "False CertificateProvisionFailed Certificate a fails to be provisioned: x."},
		"no API, downgrade":   {state: missing, managed: certmanager.State{Problem: "x", Failed: true}, condition: "True HTTPDowngrade Certificate a is not ready downgrade HTTP. The host is served without TLS until it is: x."},
		"refused":             {state: missing, refused: &certmanager.State{Problem: "y", Failed: true}, redirect: true, https: true, condition: "False CertificateProvisionFailed Certificate a fails to be provisioned: y."},
		"not owned":           {state: missing, managed: certmanager.State{Problem: "x", NotOwned: true}, condition: "False CertificateNotOwned There is an existing certificate of-a that we don't own."},
		"Secret deleted":      {state: missing, redirect: true, https: true, condition: "Unknown CertificateNotReady Certificate a is not ready: it does not exist."},
		"expired":             {state: outdated, redirect: true, https: true, condition: "Unknown CertificateNotReady Certificate a is not ready: it expired."},
		"expired, not issued": {state: outdated, managed: certmanager.State{Problem: "x", Failed: true}, redirect: true, https: true, condition: "False CertificateProvisionFailed Certificate a fails to be provisioned: x; it expired."},
	} {
		t.Run(name, func(t *testing.T) {
			certificates, manager := &fakeCertificates{state: test.state}, &fakeManager{state: test.managed, refused: test.refused}
			network := settings.Default("example.com").Network
			network.ExternalDomainTLS, network.Redirect, network.CertificateClass = true, test.redirect, settings.CertManagerClass
			network.Issuer = settings.Issuer{Name: "issuer"}
			f := Secure(t.Context(), certificates, manager, Object{Public: []string{"a"}, ManagedName: func(host string) string { return "of-" + host }}, &network)
			if err := f.Apply(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := short(f.Condition("CertificateProvisioned")); got != test.condition {
				t.Errorf("the condition is %q, want %q", got, test.condition)
			}
			if f.HTTPS("a") != test.https || f.Serves("a") != test.state.Ready {
				t.Errorf("URL is HTTPS: %v, serves %v", f.HTTPS("a"), f.Serves("a"))
			}
			if want := []hostcerts.Request{{Host: "a", Secret: "of-a"}}; !slices.Equal(certificates.requested, want) {
				t.Errorf("requested %v, want %v", certificates.requested, want)
			}
			if want := []certmanager.Certificate{{Name: "of-a", Host: "a"}}; !slices.Equal(manager.wanted, want) || manager.issuer != network.Issuer {
				t.Errorf("wanted %v of %v, want %v", manager.wanted, manager.issuer, want)
			}
		})
	}
}

// TestCertManagerUnwanted covers objects that no longer want Certificates of cert-manager, and an error that is retried.
func TestCertManagerUnwanted(t *testing.T) {
	for name, change := range map[string]func(o *Object, network *settings.Network){
		"another class": func(o *Object, _ *settings.Network) {
			o.Annotations = map[string]string{"networking.knative.dev/certificate-class": settings.SelfManagedClass}
		},
		"disabled":      func(_ *Object, network *settings.Network) { network.ExternalDomainTLS = false },
		"a Secret":      func(o *Object, _ *settings.Network) { o.Secret = ptr.To("own") },
		"cluster-local": func(o *Object, _ *settings.Network) { o.Local = true },
	} {
		t.Run(name, func(t *testing.T) {
			manager := &fakeManager{err: errors.New("not deleted")}
			network := settings.Default("example.com").Network
			network.ExternalDomainTLS, network.CertificateClass = true, settings.CertManagerClass
			o := Object{Public: []string{"a"}, ManagedName: func(host string) string { return host }}
			change(&o, &network)
			f := Secure(t.Context(), &fakeCertificates{}, manager, o, &network)
			if err := f.Apply(t.Context()); len(manager.wanted) > 0 || !errors.Is(err, manager.err) {
				t.Errorf("wanted %v, %v", manager.wanted, err)
			}
		})
	}
}

// TestCertManagerOfPeers covers a gateway that receives certificates: other replicas write the Certificates of cert-manager.
func TestCertManagerOfPeers(t *testing.T) {
	network := settings.Default("example.com").Network
	network.ExternalDomainTLS, network.CertificateClass = true, settings.CertManagerClass
	f := Secure(t.Context(), &fakeCertificates{state: hostcerts.State{Ready: true}}, nil, Object{Public: []string{"a"}, ManagedName: func(host string) string { return host }}, &network)
	if err := f.Apply(t.Context()); err != nil || !f.Serves("a") {
		t.Errorf("serves %v, %v", f.Serves("a"), err)
	}
}

func short(c duckv1.Condition) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message))
}

// TestACME covers the condition of host names whose certificates an ACME server issues.
func TestACME(t *testing.T) {
	for name, test := range map[string]struct {
		state     hostcerts.State
		redirect  bool
		https     bool
		condition string
	}{
		"issued":              {state: hostcerts.State{Ready: true}, https: true, condition: "True"},
		"renewal fails":       {state: hostcerts.State{Ready: true, Problem: "x", Failed: true}, redirect: true, https: true, condition: "True  Certificate a is ready, but x."},
		"pending":             {state: hostcerts.State{Problem: "x"}, redirect: true, https: true, condition: "Unknown CertificateNotReady Certificate a is not ready: x."},
		"pending, downgrade":  {state: hostcerts.State{Problem: "x"}, condition: "True HTTPDowngrade Certificate a is not ready downgrade HTTP. The host is served without TLS until it is: x."},
		"failed":              {state: hostcerts.State{Problem: "x", Failed: true}, redirect: true, https: true, condition: "False CertificateProvisionFailed Certificate a fails to be provisioned: x."},
		"failed, downgrade":   {state: hostcerts.State{Problem: "x", Failed: true}, condition: "True HTTPDowngrade Certificate a is not ready downgrade HTTP. The host is served without TLS until it is: x."},
		"of another class":    {state: hostcerts.State{Ready: true, Outdated: true, Problem: "x"}, redirect: true, https: true, condition: "Unknown CertificateNotReady Certificate a is not ready: x."},
		"expired, not issued": {state: hostcerts.State{Ready: true, Outdated: true, Problem: "x", Failed: true}, redirect: true, https: true, condition: "False CertificateProvisionFailed Certificate a fails to be provisioned: x."},
	} {
		t.Run(name, func(t *testing.T) {
			certificates := &fakeCertificates{state: test.state}
			network := settings.Default("example.com").Network
			network.ExternalDomainTLS, network.Redirect, network.CertificateClass = true, test.redirect, settings.ACMEClass
			f := Secure(t.Context(), certificates, nil, Object{Public: []string{"a"}}, &network)
			if got := short(f.Condition("CertificateProvisioned")); got != test.condition {
				t.Errorf("the condition is %q, want %q", got, test.condition)
			}
			if f.HTTPS("a") != test.https {
				t.Errorf("URL is HTTPS: %v", f.HTTPS("a"))
			}
			if want := []hostcerts.Request{{Host: "a", ACME: true}}; !slices.Equal(certificates.requested, want) {
				t.Errorf("requested %v, want %v", certificates.requested, want)
			}
		})
	}
}
