package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
)

// ChannelDefaultsConfigMapName is the name of the ConfigMap with the templates of Channels without one.
const ChannelDefaultsConfigMapName = "default-ch-webhook"

const keyChannelDefaults = "default-ch-config"

// channelDefaults is the format of keyChannelDefaults.
type channelDefaults struct {
	Cluster    *messagingv1.ChannelTemplateSpec            `json:"clusterDefault"`
	Namespaces map[string]*messagingv1.ChannelTemplateSpec `json:"namespaceDefaults"`
}

// parseChannelDefaults sets the values of default-ch-webhook in s.
func parseChannelDefaults(p *parser, s *Settings) error {
	key, value, ok := p.lookup(keyChannelDefaults)
	if !ok {
		return p.done()
	}
	var config channelDefaults
	if err := yaml.UnmarshalStrict([]byte(value), &config); err != nil {
		return errors.Join(fmt.Errorf("key '%s' of %s must be 'clusterDefault' and 'namespaceDefaults' in YAML: %w", key, p.configMap, err), p.done())
	}
	for _, fault := range config.validate() {
		p.errs = append(p.errs, fmt.Errorf("key '%s' of %s: %w", key, p.configMap, fault))
	}
	maps.DeleteFunc(config.Namespaces, func(_ string, template *messagingv1.ChannelTemplateSpec) bool { return template == nil })
	s.Messaging = messagingv1.Settings{Cluster: config.Cluster, Namespaces: config.Namespaces}
	return p.done()
}

// validate returns all errors. Null means no template.
func (d channelDefaults) validate() field.ErrorList {
	var faults field.ErrorList
	if d.Cluster != nil {
		faults = d.Cluster.Validate(field.NewPath("clusterDefault"))
	}
	for _, namespace := range slices.Sorted(maps.Keys(d.Namespaces)) {
		path := field.NewPath("namespaceDefaults").Key(namespace)
		for _, message := range validation.IsDNS1123Label(namespace) {
			faults = append(faults, field.Invalid(path, namespace, message))
		}
		if template := d.Namespaces[namespace]; template != nil {
			faults = append(faults, template.Validate(path)...)
		}
	}
	return faults
}
