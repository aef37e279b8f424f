package settings

import (
	"errors"
	"strings"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// parseFeatures sets the values of config-features in s.
func parseFeatures(p *parser, s *Settings) error {
	features, err := servingv1.FeaturesFromConfigMap(p.data)
	s.API.Features = features
	// For templates, allowed enables a feature on request. Requests cannot do so, so allowed does not enable it here.
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
