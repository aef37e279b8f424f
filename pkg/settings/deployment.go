package settings

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// DeploymentConfigMapName is the name of the ConfigMap with the settings of Deployments.
const DeploymentConfigMapName = "config-deployment"

// parseDeployment sets the values of config-deployment in s. Knative's settings for sidecars have no effect, because Pods have
// no sidecar.
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
	read(p, &d.RuntimeClasses, parseRuntimeClasses, "a YAML map of runtime classes, each with a 'selector' of labels or {}", "runtime-class-name")
	read(p, &d.SpreadOverNodes, func(value string) (bool, bool) {
		return value == spreadOverNodes, value == spreadOverNodes || value == noAffinity
	}, "'"+spreadOverNodes+"' or '"+noAffinity+"'", "default-affinity-type")
	read(p, &d.AlwaysSchedulable, boolean, "true or false", "pod-is-always-schedulable")
	return p.done()
}

// Values of default-affinity-type.
const (
	spreadOverNodes = "prefer-spread-revision-over-nodes"
	noAffinity      = "none"
)

// parseRuntimeClasses parses the value of runtime-class-name. It is strict, because a misspelt selector would apply the class
// to all Revisions.
func parseRuntimeClasses(value string) (RuntimeClasses, bool) {
	var config map[string]struct {
		Selector map[string]string `json:"selector"`
	}
	if err := yaml.UnmarshalStrict([]byte(value), &config); err != nil {
		return nil, false
	}
	classes := RuntimeClasses{}
	for name, class := range config {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return nil, false
		}
		classes[name] = class.Selector
	}
	return classes, true
}

// For returns the runtime class for a Revision with these labels, or "". The most specific matching selector decides, then
// the name of the class.
func (r RuntimeClasses) For(have map[string]string) string {
	found, specificity := "", -1
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if n := len(r[name]); n > specificity && labels.SelectorFromSet(r[name]).Matches(labels.Set(have)) {
			found, specificity = name, n
		}
	}
	return found
}

// PodDefaults returns the runtime class for a Revision with the given labels, or "", and whether its Pods are spread over
// nodes.
func (s *Settings) PodDefaults(labels map[string]string) (runtimeClass string, spread bool) {
	return s.Deployment.RuntimeClasses.For(labels), s.Deployment.SpreadOverNodes
}
