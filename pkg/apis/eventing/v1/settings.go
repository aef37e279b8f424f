package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// Settings are the operator's settings for objects of Eventing (config-br-defaults and config-features). They must not be modified.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Settings struct {
	// Cluster applies to every namespace that is not in Namespaces.
	Cluster BrokerDefaults
	// Namespaces overrides Cluster as a whole, by namespace.
	Namespaces map[string]BrokerDefaults
	// Links allows Triggers and Subscriptions to receive events of other namespaces (cross-namespace-event-links of
	// config-features).
	Links bool
	// OIDC is true if senders are authenticated (authentication-oidc of config-features).
	OIDC bool
}

// BrokerDefaults are the defaults of new Brokers in a namespace.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type BrokerDefaults struct {
	// Class is the default class; empty means BrokerClassJetStream.
	Class string
	// Options are the defaults of Brokers whose class is not in Classes.
	Options BrokerOptions
	// Classes overrides Options by class.
	Classes map[string]BrokerOptions
	// OwnNamespace restricts the configuration of Brokers to objects of their own namespace.
	OwnNamespace bool
}

// BrokerOptions are the defaults for parts of a Broker's spec. Nil means no default.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type BrokerOptions struct {
	Config   *duckv1.KReference
	Delivery *duckv1.DeliverySpec
}

// DefaultSettings returns the settings without a ConfigMap.
func DefaultSettings() Settings { return Settings{} }

// of returns the defaults of a namespace.
func (st Settings) of(namespace string) BrokerDefaults {
	if defaults, ok := st.Namespaces[namespace]; ok {
		return defaults
	}
	return st.Cluster
}

// of returns the options of a class.
func (d BrokerDefaults) of(class string) BrokerOptions {
	if options, ok := d.Classes[class]; ok {
		return options
	}
	return d.Options
}

// Validate returns the errors of options at path: the configuration must be a complete reference, the delivery options must
// be valid for a Broker.
func (o BrokerOptions) Validate(path *field.Path) field.ErrorList {
	return append(o.Config.Validate(path), o.Delivery.Validate(path.Child("delivery"))...)
}
