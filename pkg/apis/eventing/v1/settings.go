package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// Settings are the operator's choices for new Brokers (config-br-defaults). Not to be changed.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Settings struct {
	// Cluster is what holds in every namespace that is not among Namespaces.
	Cluster BrokerDefaults
	// Namespaces holds by namespace what is in force there instead of Cluster, as a whole.
	Namespaces map[string]BrokerDefaults
}

// BrokerDefaults are what the new Brokers of a namespace get that they leave out.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type BrokerDefaults struct {
	// Class is the class of Brokers that name none; empty means BrokerClassJetStream.
	Class string
	// Options are for Brokers of all classes but those that Classes has others for.
	Options BrokerOptions
	// Classes holds options by class.
	Classes map[string]BrokerOptions
	// OwnNamespace allows Brokers only configurations of their own namespace.
	OwnNamespace bool
}

// BrokerOptions are the parts of a Broker's spec that defaults fill. Nil leaves the part as it is.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type BrokerOptions struct {
	Config   *duckv1.KReference
	Delivery *duckv1.DeliverySpec
}

// DefaultSettings returns what holds where no ConfigMap says otherwise.
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

// Validate returns the faults of options at path: their configuration is a complete reference, their delivery
// what a Broker could have.
func (o BrokerOptions) Validate(path *field.Path) field.ErrorList {
	return append(o.Config.Validate(path), o.Delivery.Validate(path.Child("delivery"))...)
}
