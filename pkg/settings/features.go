package settings

import (
	"errors"
	"strings"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// parseFeatures writes what config-features says to s.
func parseFeatures(p *parser, s *Settings) error {
	features, err := servingv1.FeaturesFromConfigMap(p.data)
	s.API.Features = features
	// Templates may ask for what is allowed. Requests have no such choice, so allowed is not enabled here.
	read(p, &s.TagHeader, func(value string) (bool, bool) {
		switch strings.ToLower(value) {
		case "enabled":
			return true, true
		case "allowed", disabled:
			return false, true
		default:
			return false, false
		}
	}, "'enabled', 'allowed' or 'disabled'", "tag-header-based-routing")
	for _, key := range servingv1.FeatureKeys() {
		p.lookup(key)
	}
	return errors.Join(err, p.done())
}
