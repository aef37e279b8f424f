package v1

import (
	"cmp"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// SetDefaults_Broker completes the references of a Broker. What depends on settings is decided once, by
// SetCreateDefaults; a stored Broker that lacks it is of a time when there were none.
func SetDefaults_Broker(b *Broker) {
	if b.UID != "" {
		b.setClass(BrokerClassJetStream)
		if b.Spec.Config == nil {
			b.Spec.Config = &duckv1.KReference{}
		}
	}
	b.Spec.Config.SetNamespace(b.Namespace)
	b.Spec.Delivery.SetDefaults(b.Namespace)
}

// SetCreateDefaults fills by settings what a new Broker leaves out, the namespace of references included. Class
// and configuration are recorded even where settings have none, because they may not change later (eventing
// Broker Lifecycle).
func (b *Broker) SetCreateDefaults(st Settings) {
	defaults := st.of(b.Namespace)
	b.setClass(cmp.Or(defaults.Class, BrokerClassJetStream))
	options := defaults.of(b.Annotations[BrokerClassAnnotationKey])
	if b.Spec.Config == nil {
		b.Spec.Config = options.Config.DeepCopy()
	}
	if b.Spec.Config == nil {
		b.Spec.Config = &duckv1.KReference{}
	}
	if b.Spec.Delivery.IsEmpty() {
		b.Spec.Delivery = options.Delivery.DeepCopy()
	}
	SetDefaults_Broker(b)
}

// SetUpdateDefaults keeps the class and the configuration of old where an update leaves them out: a manifest
// that was created without them can be applied again whatever the settings are by now (eventing Broker
// Lifecycle).
func (b *Broker) SetUpdateDefaults(old *Broker) {
	b.setClass(old.Annotations[BrokerClassAnnotationKey])
	if b.Spec.Config == nil {
		b.Spec.Config = old.Spec.Config.DeepCopy()
	}
}

// setClass sets the class of a Broker that has none.
func (b *Broker) setClass(class string) {
	if b.Annotations[BrokerClassAnnotationKey] != "" {
		return
	}
	if b.Annotations == nil {
		b.Annotations = map[string]string{}
	}
	b.Annotations[BrokerClassAnnotationKey] = class
}
