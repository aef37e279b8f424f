package settings

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// DomainConfigMapName is the name of the ConfigMap with the domains of public host names.
const DomainConfigMapName = "config-domain"

// For returns the domain of a Route with these labels. The most specific matching selector decides.
func (d Domain) For(have map[string]string) string {
	for _, candidate := range d.Domains {
		if labels.SelectorFromSet(candidate.Labels).Matches(labels.Set(have)) {
			return candidate.Domain
		}
	}
	return ""
}

// parseDomain sets the values of config-domain in s. Each key is a domain. Its value is empty or the labels that select Routes.
// Without a domain for all other Routes, the previous one remains.
func parseDomain(p *parser, s *Settings) error {
	var domains []DomainSelector
	fallback := false
	for _, domain := range slices.Sorted(maps.Keys(p.data)) {
		if domain == exampleKey {
			continue
		}
		selector := DomainSelector{Domain: domain}
		name := strings.ToLower(domain)
		if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
			p.errs = append(p.errs, fmt.Errorf("key '%s' of %s must be a DNS name: %s", domain, DomainConfigMapName, strings.Join(faults, ", ")))
			continue
		}
		selector.Domain = name
		read(p, &selector.Labels, parseSelector, "empty or 'selector:' with a map of labels", domain)
		fallback = fallback || len(selector.Labels) == 0
		domains = append(domains, selector)
	}
	if !fallback {
		domains = append(domains, DomainSelector{Domain: s.Domain.For(nil)})
	}
	// Selectors with the same number of labels are ordered by name, so that the result is deterministic.
	slices.SortStableFunc(domains, func(a, b DomainSelector) int {
		return cmp.Or(cmp.Compare(len(b.Labels), len(a.Labels)), cmp.Compare(a.Domain, b.Domain))
	})
	s.Domain = Domain{Domains: domains}
	return p.done()
}

// parseSelector parses the value of a domain. It is strict, because a misspelt selector would apply the domain to all Routes.
func parseSelector(value string) (map[string]string, bool) {
	var config struct {
		Selector map[string]string `json:"selector"`
		// Type selects a certificate issuer in Knative; it has no effect here.
		Type string `json:"type"`
	}
	err := yaml.UnmarshalStrict([]byte(value), &config)
	return config.Selector, err == nil
}
