package route

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// fakeCertificates provides all requested certificates unless there is a problem.
type fakeCertificates struct {
	problem  string
	requests map[hostcerts.Owner][]hostcerts.Request
}

func (f *fakeCertificates) Set(_ context.Context, owner hostcerts.Owner, requests []hostcerts.Request) {
	if f.requests == nil {
		f.requests = map[hostcerts.Owner][]hostcerts.Request{}
	}
	f.requests[owner] = requests
}

func (f *fakeCertificates) State(host string) hostcerts.State {
	for _, requests := range f.requests {
		if slices.ContainsFunc(requests, func(r hostcerts.Request) bool { return r.Host == host }) && f.problem == "" {
			return hostcerts.State{Ready: true}
		}
	}
	return hostcerts.State{Problem: f.problem}
}

func (*fakeCertificates) Subscribe(func(hostcerts.Owner)) {}

// secured returns the host names with a certificate in the gateway, with ">" if it redirects to HTTPS.
func (f *fakeGateway) secured() string {
	var hosts []string
	for _, route := range f.routes {
		for _, h := range route.Hosts {
			if h.RedirectToHTTPS {
				h.Name += ">"
			}
			if h.Certificate {
				hosts = append(hosts, h.Name)
			}
		}
	}
	slices.Sort(hosts)
	return strings.Join(hosts, " ")
}

// TestTLS covers the host names that get certificates, with status and gateway.
func TestTLS(t *testing.T) {
	const prefix = "networking.knative.dev/"
	const secured = "hello.default.example.com v1-hello.default.example.com"
	for name, test := range map[string]struct {
		annotations, labels map[string]string
		disabled, redirect  bool
		class, problem      string
		noGateway           bool

		condition, ingress, url, tag, gateway string
	}{
		"enabled":                     {condition: "True", url: "https", tag: "https", gateway: secured},
		"disabled":                    {disabled: true, condition: "True TLSNotEnabled external-domain-tls is not enabled", url: "http", tag: "http"},
		"disabled for the Route":      {annotations: map[string]string{prefix + "disable-auto-tls": "T"}, condition: "True TLSNotEnabled external-domain-tls is not enabled", url: "http", tag: "http"},
		"no listener":                 {noGateway: true, condition: "True TLSNotEnabled the gateway does not serve HTTPS", url: "http", tag: "http"},
		"redirected":                  {redirect: true, condition: "True", url: "https", tag: "https", gateway: "hello.default.example.com> v1-hello.default.example.com>"},
		"redirected for the Route":    {annotations: map[string]string{prefix + "http-protocol": "Redirected"}, condition: "True", url: "https", tag: "https", gateway: "hello.default.example.com> v1-hello.default.example.com>"},
		"enabled for the Route":       {annotations: map[string]string{prefix + "httpOption": "enabled"}, redirect: true, condition: "True", url: "https", tag: "https", gateway: secured},
		"redirected, but without TLS": {disabled: true, redirect: true, condition: "True TLSNotEnabled external-domain-tls is not enabled", url: "http", tag: "http"},
		"incorrect http-protocol": {
			annotations: map[string]string{prefix + "http-protocol": "disabled"}, condition: "True", url: "https", tag: "https", gateway: secured,
			ingress: `False HTTPProtocolInvalid incorrect http-protocol annotation: "disabled" of annotation "networking.knative.dev/http-protocol" must be 'enabled' or 'redirected'`,
		},
		"not ready": {problem: "no authority", condition: "True HTTPDowngrade Certificate hello.default.example.com is not ready downgrade HTTP. The host is served without TLS until it is: no authority.", url: "http", tag: "http"},
		"not ready, redirected": {
			problem: "no authority", redirect: true,
			condition: "Unknown CertificateNotReady Certificate hello.default.example.com is not ready: no authority.", url: "https", tag: "https",
		},
		"unknown class": {
			class: "acme", redirect: true, url: "https", tag: "https",
			condition: `False CertificateProvisionFailed Certificate hello.default.example.com fails to be provisioned: certificate class "acme" is not supported, only "self-managed.certificate.networking.knative.dev", "acme.certificate.networking.knative.dev" and "cert-manager.certificate.networking.knative.dev".`,
		},
		"unknown class of the Route": {
			annotations: map[string]string{prefix + "certificate.class": "acme"}, url: "http", tag: "http",
			condition: `True HTTPDowngrade Certificate hello.default.example.com is not ready downgrade HTTP. The host is served without TLS until it is: certificate class "acme" is not supported, only "self-managed.certificate.networking.knative.dev", "acme.certificate.networking.knative.dev" and "cert-manager.certificate.networking.knative.dev".`,
		},
		"cluster-local": {labels: map[string]string{servingv1.VisibilityLabelKey: servingv1.VisibilityClusterLocal}, condition: "True TLSNotEnabled TLS is not enabled for cluster-local", url: "http", tag: "http"},
	} {
		t.Run(name, func(t *testing.T) {
			route := newRoute("hello", pin("hello-1", 100, "v1"))
			route.Annotations, route.Labels = test.annotations, test.labels
			f := newFixture(t, route, newRevision("hello", 1, ready(corev1.ConditionTrue, "")))
			f.settings.Network.ExternalDomainTLS, f.settings.Network.Redirect = !test.disabled, test.redirect
			if test.class != "" {
				f.settings.Network.CertificateClass = test.class
			}
			certificates := &fakeCertificates{problem: test.problem}
			if !test.noGateway {
				f.Certificates = certificates
			}
			f.URLs.TLSPort = 8443
			f.reconcile("hello")
			if got := f.condition("hello", servingv1.RouteConditionCertificateProvisioned); got != test.condition {
				t.Errorf("CertificateProvisioned is %q, want %q", got, test.condition)
			}
			if test.ingress == "" {
				test.ingress = "True"
			}
			if got := f.condition("hello", ingress); got != test.ingress {
				t.Errorf("IngressReady is %q, want %q", got, test.ingress)
			}
			url := func(scheme, host string) string {
				switch {
				case test.labels != nil:
					return "http://" + host + ".default.svc.cluster.local"
				case scheme == "https":
					return "https://" + host + ".default.example.com:8443"
				}
				return "http://" + host + ".default.example.com"
			}
			status := f.status("hello")
			if status.URL != url(test.url, "hello") || status.Traffic[0].URL != url(test.tag, "v1-hello") {
				t.Errorf("URLs are %s and %s, want %s and %s", status.URL, status.Traffic[0].URL, test.url, test.tag)
			}
			if got := status.Address.URL; got != "http://hello.default.svc.cluster.local" {
				t.Errorf("status.address.url is %s, want http within the cluster", got)
			}
			if got := f.gateway.secured(); got != test.gateway {
				t.Errorf("the gateway serves HTTPS for %q, want %q", got, test.gateway)
			}
		})
	}
}

// TestTLSOfOthers checks that a Route requests no certificate for a host name of another one, and none after its deletion.
func TestTLSOfOthers(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	younger := newRoute("b", pin("hello-1", 100))
	younger.CreationTimestamp.Time = began.Add(1)
	f := newFixture(t, newRoute("a", pin("hello-1", 100)), younger, newRevision("hello", 1, isReady))
	f.settings.Network = settings.Network{
		DomainTemplate: "{{.Namespace}}.{{.Domain}}", TagTemplate: "{{.Tag}}-{{.Name}}", ExternalDomainTLS: true, CertificateClass: settings.SelfManagedClass,
	}
	certificates := &fakeCertificates{}
	f.Certificates = certificates
	f.reconcile("a")
	f.reconcile("b")
	owner := func(name string) hostcerts.Owner {
		return hostcerts.Owner{Kind: "Route", Key: named(name)}
	}
	if got := certificates.requests[owner("a")]; !slices.Equal(got, []hostcerts.Request{{Host: "default.example.com"}}) {
		t.Errorf("Route a requests %v, want its host name", got)
	}
	if got := certificates.requests[owner("b")]; len(got) > 0 {
		t.Errorf("Route b requests %v, want none: the host name is another Route's", got)
	}
	f.remove("routes", "a")
	f.reconcile("a")
	if got := certificates.requests[owner("a")]; len(got) > 0 {
		t.Errorf("a deleted Route requests %v, want none", got)
	}
}

// TestTLSOfPublicAddress covers the address of a Route on a machine without a cluster: it is HTTPS if requests without TLS are redirected,
// with the authority to trust.
func TestTLSOfPublicAddress(t *testing.T) {
	f := newFixture(t, newRoute("hello", pin("hello-1", 100)), newRevision("hello", 1, ready(corev1.ConditionTrue, "")))
	f.URLs = URLs{ClusterDomain: "cluster.local", Port: 8080, TLSPort: 8443, PublicAddress: true, Authority: func() string { return "pem" }}
	f.Certificates = &fakeCertificates{}
	f.settings.Network.ExternalDomainTLS = true
	f.reconcile("hello")
	if got := f.status("hello").Address; got.URL != "http://hello.default.example.com:8080" || got.CACerts != nil {
		t.Errorf("the address is %+v, want it without TLS", got)
	}
	f.settings.Network.Redirect = true
	f.reconcile("hello")
	if got := f.status("hello").Address; got.URL != "https://hello.default.example.com:8443" || got.CACerts == nil || *got.CACerts != "pem" {
		t.Errorf("the address is %+v, want it with TLS and the authority", got)
	}
}

// TestCertificateName covers the names of Certificates of cert-manager, which are the ones of Knative's releases.
func TestCertificateName(t *testing.T) {
	route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", UID: "01234567-89ab"}}
	if got, want := certificateName(route, ""), "route-01234567-89ab"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// RFC 1950 9 defines the checksum: 1 + 98 + 97 + ... = 0x024d0127 for "abc".
	if got, want := certificateName(route, "abc"), "route-01234567-89ab-38600999"; got != want {
		t.Errorf("of a tag: got %q, want %q", got, want)
	}
}
