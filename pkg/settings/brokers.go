package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// BrokerDefaultsConfigMapName is the name of the ConfigMap with the defaults of Brokers.
const BrokerDefaultsConfigMapName = "config-br-defaults"

const keyBrokerDefaults = "default-br-config"

// brokerDefaults is the format of keyBrokerDefaults.
type brokerDefaults struct {
	Cluster    *namespaceDefaults            `json:"clusterDefault"`
	Namespaces map[string]*namespaceDefaults `json:"namespaceDefaults"`
}

// namespaceDefaults are the defaults of one namespace, or of all other namespaces.
type namespaceDefaults struct {
	brokerOptions `json:",inline"`
	Class         string                   `json:"brokerClass"`
	Classes       map[string]brokerOptions `json:"brokerClasses"`
	OwnNamespace  bool                     `json:"disallowDifferentNamespaceConfig"`
}

// brokerOptions is an inline reference and the delivery options.
type brokerOptions struct {
	duckv1.KReference `json:",inline"`
	Delivery          *duckv1.DeliverySpec `json:"delivery"`
}

// parseBrokerDefaults sets the values of config-br-defaults in s.
func parseBrokerDefaults(p *parser, s *Settings) error {
	key, value, ok := p.lookup(keyBrokerDefaults)
	if !ok {
		return p.done()
	}
	var config brokerDefaults
	if err := yaml.UnmarshalStrict([]byte(value), &config); err != nil {
		return errors.Join(fmt.Errorf("key '%s' of %s must be 'clusterDefault' and 'namespaceDefaults' in YAML: %w", key, p.configMap, err), p.done())
	}
	settings, faults := config.settings()
	for _, fault := range faults {
		p.errs = append(p.errs, fmt.Errorf("key '%s' of %s: %w", key, p.configMap, fault))
	}
	s.Eventing.Cluster, s.Eventing.Namespaces = settings.Cluster, settings.Namespaces
	return p.done()
}

// settings returns the values of a configuration and all its errors. Null values are omitted.
func (d brokerDefaults) settings() (eventingv1.Settings, field.ErrorList) {
	settings := eventingv1.Settings{Namespaces: map[string]eventingv1.BrokerDefaults{}}
	var faults field.ErrorList
	if d.Cluster != nil {
		settings.Cluster, faults = d.Cluster.settings(field.NewPath("clusterDefault"))
	}
	for _, namespace := range slices.Sorted(maps.Keys(d.Namespaces)) {
		path := field.NewPath("namespaceDefaults").Key(namespace)
		// The defaults of a namespace with an invalid name would be ignored silently.
		for _, message := range validation.IsDNS1123Label(namespace) {
			faults = append(faults, field.Invalid(path, namespace, message))
		}
		if in := d.Namespaces[namespace]; in != nil {
			defaults, errs := in.settings(path)
			settings.Namespaces[namespace], faults = defaults, append(faults, errs...)
		}
	}
	return settings, faults
}

func (d *namespaceDefaults) settings(path *field.Path) (eventingv1.BrokerDefaults, field.ErrorList) {
	options, faults := d.options(path)
	defaults := eventingv1.BrokerDefaults{
		Class: strings.TrimSpace(d.Class), Options: options, Classes: map[string]eventingv1.BrokerOptions{}, OwnNamespace: d.OwnNamespace,
	}
	for _, class := range slices.Sorted(maps.Keys(d.Classes)) {
		options, errs := d.Classes[class].options(path.Child("brokerClasses").Key(class))
		defaults.Classes[class], faults = options, append(faults, errs...)
	}
	return defaults, faults
}

func (o brokerOptions) options(path *field.Path) (eventingv1.BrokerOptions, field.ErrorList) {
	options := eventingv1.BrokerOptions{Delivery: o.Delivery}
	if o.KReference != (duckv1.KReference{}) {
		options.Config = &o.KReference
	}
	return options, options.Validate(path)
}
