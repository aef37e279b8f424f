package settings

import (
	"strings"
	"time"
)

// DeploymentConfigMapName is the ConfigMap that says how instances are deployed.
const DeploymentConfigMapName = "config-deployment"

// parseDeployment writes what config-deployment says to s. What it says of sidecars in Knative has no effect: there are
// none.
func parseDeployment(p *parser, s *Settings) error {
	d := &s.Deployment
	const positive = "a duration of more than 0s"
	read(p, &d.SkipTagResolving, func(value string) ([]string, bool) {
		var registries []string
		for registry := range strings.SplitSeq(value, ",") {
			if registry = strings.TrimSpace(registry); registry != "" {
				registries = append(registries, registry)
			}
		}
		return registries, true
	}, "a list of registries, separated by commas", "registries-skipping-tag-resolving", "registriesSkippingTagResolving")
	read(p, &d.DigestTimeout, period(func(d time.Duration) bool { return d > 0 }), positive, "digest-resolution-timeout", "digestResolutionTimeout")
	read(p, &d.ProgressDeadline, period(func(d time.Duration) bool { return d > 0 && wholeSeconds(d) }),
		positive+", in whole seconds", "progress-deadline", "progressDeadline")
	return p.done()
}
