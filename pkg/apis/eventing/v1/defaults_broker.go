package v1

import (
	"cmp"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// SetDefaults_Broker completes the references of a Broker. SetCreateDefaults sets the defaults that depend on settings, once;
// a stored Broker without them predates the settings.
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

// SetCreateDefaults sets the defaults of a new Broker from settings, including the namespace of references. Class and
// configuration are recorded even if the settings have none, because they are immutable (eventing Broker Lifecycle).
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

// SetUpdateDefaults keeps the class and the configuration of old if an update omits them: a manifest that was created without
// them can be applied again regardless of the current settings (eventing Broker Lifecycle).
func (b *Broker) SetUpdateDefaults(old *Broker) {
	b.setClass(old.Annotations[BrokerClassAnnotationKey])
	if b.Spec.Config == nil {
		b.Spec.Config = old.Spec.Config.DeepCopy()
	}
}

// setClass sets the class of a Broker without one.
func (b *Broker) setClass(class string) {
	if b.Annotations[BrokerClassAnnotationKey] != "" {
		return
	}
	if b.Annotations == nil {
		b.Annotations = map[string]string{}
	}
	b.Annotations[BrokerClassAnnotationKey] = class
}
