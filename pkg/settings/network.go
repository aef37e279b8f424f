package settings

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"net/mail"
	"net/url"
	"regexp"
	"strings"
	"text/template"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// NetworkConfigMapName is the name of the ConfigMap with the settings of host names, schemes and rollouts.
const NetworkConfigMapName = "config-network"

// invocationKey is the key of config-network that restricts callers.
const invocationKey = "invocation"

// The keys of config-network about the ACME server.
const (
	acmeDirectoryKey = "acme-directory"
	acmeEmailKey     = "acme-email"
	acmeTermsKey     = "acme-accept-terms"
	acmeBundleKey    = "acme-ca-bundle"
	acmeChallengeKey = "acme-challenge"
)

// certificateClassKeys are the names of the key with the certificate class, the current one first.
func certificateClassKeys() []string {
	return []string{"certificate-class", "certificate.class", "certificateClass"}
}

// SelfManagedClass is the certificate class of the server's own authority, which issues certificates unless another class is set.
const SelfManagedClass = "self-managed.certificate.networking.knative.dev"

// ACMEClass is the certificate class of the ACME server that config-network names.
const ACMEClass = "acme.certificate.networking.knative.dev"

// ACME configures the ACME server that issues the certificates of class ACMEClass.
type ACME struct {
	// Directory is the URL of its directory, or empty. Email is the contact of the account, or empty.
	Directory, Email string
	// AcceptTerms is true if the operator accepts its terms of service.
	AcceptTerms bool
	// Bundle are its trusted certificates in PEM; empty trusts the system's.
	Bundle string
	// Challenge is the only type of challenge to use, or empty.
	Challenge string
}

// hostValues are the values available in a domain template.
type hostValues struct {
	Name, Namespace, Domain string
	Annotations, Labels     map[string]string
}

// tagValues are the values available in a tag template.
type tagValues struct{ Tag, Name string }

func defaultNetwork() Network {
	n := Network{DomainTemplate: "{{.Name}}.{{.Namespace}}.{{.Domain}}", TagTemplate: "{{.Tag}}-{{.Name}}", DefaultExternalScheme: "http", CertificateClass: SelfManagedClass, Invocation: servingv1.InvocationOpen}
	n.domain, n.tag = template.Must(parseTemplate(n.DomainTemplate)), template.Must(parseTemplate(n.TagTemplate))
	return n
}

// Hostname returns the public host name of a Route, in lower case; name is the name of the Route, or the result of TagName.
// It fails if the template does not render a DNS name.
func (n Network) Hostname(name, namespace, domain string, labels, annotations map[string]string) (string, error) {
	return render(n.domain, n.DomainTemplate, "domain-template",
		hostValues{Name: name, Namespace: namespace, Domain: domain, Labels: labels, Annotations: annotations})
}

// TagName returns the name that replaces the Route's name in the host name of a tag.
func (n Network) TagName(tag, name string) (string, error) {
	return render(n.tag, n.TagTemplate, "tag-template", tagValues{Tag: tag, Name: name})
}

// parseNetwork sets the values of config-network in s.
func parseNetwork(p *parser, s *Settings) error {
	n := &s.Network
	const must = "a text/template that renders a DNS name from"
	read(p, &n.domain, parseDomainTemplate, must+" .Name, .Namespace, .Domain, .Annotations and .Labels, different for each .Name", "domain-template", "domainTemplate")
	read(p, &n.tag, parseTagTemplate, must+" .Tag and .Name, different for each .Tag or .Name", "tag-template", "tagTemplate")
	if _, value, ok := p.lookup("domain-template", "domainTemplate"); ok {
		n.DomainTemplate = value
	}
	if _, value, ok := p.lookup("tag-template", "tagTemplate"); ok {
		n.TagTemplate = value
	}
	read(p, &n.RolloutDuration, func(value string) (time.Duration, bool) {
		n, ok := seconds(0)(value)
		return time.Duration(n) * time.Second, ok
	}, "a whole number of seconds, 0 or more", "rollout-duration", "rolloutDuration")
	read(p, &n.DefaultExternalScheme, func(value string) (string, bool) {
		value = strings.ToLower(value)
		return value, value == "http" || value == "https"
	}, "'http' or 'https'", "default-external-scheme", "defaultExternalScheme")
	read(p, &n.ExternalDomainTLS, parseExternalDomainTLS, "'Enabled' or 'Disabled'", "external-domain-tls", "externalDomainTLS", "auto-tls", "autoTLS")
	s.API.ExternalDomainTLS = n.ExternalDomainTLS
	read(p, &n.CertificateClass, func(value string) (string, bool) { return cmp.Or(value, SelfManagedClass), true }, "a certificate class",
		certificateClassKeys()...)
	read(p, &n.ACME.Directory, parseDirectory, "an https:// URL", acmeDirectoryKey)
	read(p, &n.ACME.Email, func(value string) (string, bool) {
		address, err := mail.ParseAddress(value)
		return value, value == "" || err == nil && address.Address == value
	}, "an e-mail address", acmeEmailKey)
	read(p, &n.ACME.AcceptTerms, boolean, "'true' or 'false'", acmeTermsKey)
	read(p, &n.ACME.Bundle, func(value string) (string, bool) {
		return value, value == "" || x509.NewCertPool().AppendCertsFromPEM([]byte(value))
	}, "certificates in PEM", acmeBundleKey)
	read(p, &n.ACME.Challenge, func(value string) (string, bool) {
		return value, value == "" || value == "http-01" || value == "tls-alpn-01"
	}, "'http-01', 'tls-alpn-01' or empty", acmeChallengeKey)
	read(p, &n.Redirect, parseHTTPProtocol, "'Enabled' or 'Redirected'", "http-protocol", "httpProtocol")
	read(p, &n.Invocation, func(value string) (string, bool) {
		return value, value == servingv1.InvocationOpen || value == servingv1.InvocationRBAC
	}, "'open' or 'rbac'", invocationKey)
	read(p, &n.AutocreateClusterDomainClaims, boolean, "'true' or 'false'", "autocreate-cluster-domain-claims", "autocreateClusterDomainClaims")
	return p.done()
}

// restricting returns the data that applies instead of invalid data before any valid data: invalid data must not open a Route, Broker or Channel.
func restricting(name string, invalid map[string]string) map[string]string {
	if name == servingv1.FeaturesConfigMapName {
		return restrictingFeatures(invalid)
	}
	if value, ok := invalid[invocationKey]; !ok || value == servingv1.InvocationOpen || name != NetworkConfigMapName {
		return nil
	}
	return map[string]string{invocationKey: servingv1.InvocationRBAC}
}

// parseDirectory parses acme-directory.
func parseDirectory(value string) (string, bool) {
	if value == "" {
		return "", true
	}
	u, err := url.Parse(value)
	return value, err == nil && u.Scheme == "https" && u.Host != "" && u.User == nil
}

// parseExternalDomainTLS parses external-domain-tls.
func parseExternalDomainTLS(value string) (enabled, ok bool) {
	switch strings.ToLower(value) {
	case "enabled":
		return true, true
	case "disabled":
		return false, true
	}
	return false, false
}

// parseHTTPProtocol parses http-protocol. "Disabled" is a deprecated value that redirects nothing.
func parseHTTPProtocol(value string) (redirect, ok bool) {
	switch strings.ToLower(value) {
	case "redirected":
		return true, true
	case "enabled", "disabled":
		return false, true
	}
	return false, false
}

func parseTemplate(text string) (*template.Template, error) {
	return template.New("").Option("missingkey=zero").Parse(text)
}

// parseDomainTemplate parses and tests a template.
func parseDomainTemplate(text string) (*template.Template, bool) {
	t, err := parseTemplate(text)
	if err != nil {
		return nil, false
	}
	// The template may use any annotations and labels, or none.
	for _, sample := range []map[string]string{{}, sampleValues(text)} {
		values := hostValues{Name: "a", Namespace: "b", Domain: "example.com", Annotations: sample, Labels: sample}
		one, err := execute(t, values)
		values.Name = "c"
		other, otherErr := execute(t, values)
		if err == nil && otherErr == nil && one != other {
			return t, true
		}
	}
	return nil, false
}

// sampleValues returns a value for each word that a template could use as a key.
func sampleValues(text string) map[string]string {
	sample := map[string]string{}
	for _, word := range regexp.MustCompile(`[A-Za-z0-9._/-]+`).FindAllString(text, -1) {
		sample[word] = "x"
		for _, field := range strings.Split(word, ".") {
			sample[field] = "x"
		}
	}
	return sample
}

// parseTagTemplate parses and tests a template.
func parseTagTemplate(text string) (*template.Template, bool) {
	t, err := parseTemplate(text)
	if err != nil {
		return nil, false
	}
	seen := map[string]bool{}
	for _, values := range []tagValues{{"a", "b"}, {"c", "b"}, {"a", "c"}} {
		name, err := execute(t, values)
		if err != nil || seen[name] {
			return nil, false
		}
		seen[name] = true
	}
	return t, true
}

// render executes a template, which it parses if necessary.
func render(t *template.Template, text, key string, values any) (string, error) {
	if t == nil {
		var err error
		if t, err = parseTemplate(text); err != nil {
			return "", fmt.Errorf("'%s' of %s: %w", key, NetworkConfigMapName, err)
		}
	}
	name, err := execute(t, values)
	if err != nil {
		return "", fmt.Errorf("'%s' of %s (%s): %w", key, NetworkConfigMapName, text, err)
	}
	return name, nil
}

// execute executes a template and returns the DNS name that it renders.
func execute(t *template.Template, values any) (string, error) {
	var out strings.Builder
	if err := t.Execute(&out, values); err != nil {
		return "", err
	}
	name := strings.ToLower(out.String())
	faults := validation.IsDNS1123Subdomain(name)
	for label := range strings.SplitSeq(name, ".") {
		if len(label) > validation.DNS1123LabelMaxLength {
			faults = append(faults, fmt.Sprintf("its label '%s' has more than %d characters", label, validation.DNS1123LabelMaxLength))
		}
	}
	if len(faults) > 0 {
		return "", fmt.Errorf("'%s' is not a DNS name: %s", name, strings.Join(faults, ", "))
	}
	return name, nil
}
