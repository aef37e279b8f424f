package settings

import (
	"cmp"
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// CertManagerConfigMapName is the name of the ConfigMap with the issuer of the certificates of class CertManagerClass.
const CertManagerConfigMapName = "config-certmanager"

// CertManagerClass is the certificate class of cert-manager in the host cluster.
const CertManagerClass = "cert-manager.certificate.networking.knative.dev"

// Issuer refers to an issuer of cert-manager. The zero value refers to none.
type Issuer struct {
	Name string `json:"name"`
	// Kind is Issuer unless the operator sets another one, Group cert-manager.io.
	Kind  string `json:"kind"`
	Group string `json:"group"`
}

// kindPattern matches the names of kinds.
var kindPattern = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,62}$`)

// parseCertManager sets the values of config-certmanager in s.
func parseCertManager(p *parser, s *Settings) error {
	read(p, &s.Network.Issuer, parseIssuer, "empty or YAML with the 'name' of an issuer, and its 'kind' and 'group' unless they are Issuer and cert-manager.io", "issuerRef")
	return p.done()
}

// parseIssuer parses issuerRef. It is strict, because a misspelt kind would select another issuer.
func parseIssuer(value string) (Issuer, bool) {
	if value == "" {
		return Issuer{}, true
	}
	var issuer Issuer
	if err := yaml.UnmarshalStrict([]byte(value), &issuer); err != nil {
		return Issuer{}, false
	}
	issuer.Kind, issuer.Group = cmp.Or(issuer.Kind, "Issuer"), cmp.Or(issuer.Group, "cert-manager.io")
	ok := len(validation.IsDNS1123Subdomain(issuer.Name)) == 0 && kindPattern.MatchString(issuer.Kind) && len(validation.IsDNS1123Subdomain(issuer.Group)) == 0
	return issuer, ok
}
