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

// DomainConfigMapName is the ConfigMap of the domains of public host names.
const DomainConfigMapName = "config-domain"

// For returns the domain for a Route of these labels: that of the most specific selector that they meet.
func (d Domain) For(have map[string]string) string {
	for _, candidate := range d.Domains {
		if labels.SelectorFromSet(candidate.Labels).Matches(labels.Set(have)) {
			return candidate.Domain
		}
	}
	return ""
}

// parseDomain writes what config-domain says to s: each key is a domain, its value empty or the labels that a
// Route must have for it. Without a domain for all other Routes, the one there was before stays.
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
	// Between selectors of as many labels the name decides, so that the same one wins every time.
	slices.SortStableFunc(domains, func(a, b DomainSelector) int {
		return cmp.Or(cmp.Compare(len(b.Labels), len(a.Labels)), cmp.Compare(a.Domain, b.Domain))
	})
	s.Domain = Domain{Domains: domains}
	return p.done()
}

// parseSelector reads the value of a domain. It is strict, because a misspelt selector would give the domain
// to every Route.
func parseSelector(value string) (map[string]string, bool) {
	var config struct {
		Selector map[string]string `json:"selector"`
		// Type says how certificates are made in Knative; there is no choice here.
		Type string `json:"type"`
	}
	err := yaml.UnmarshalStrict([]byte(value), &config)
	return config.Selector, err == nil
}
