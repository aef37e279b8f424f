package v1

import duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"

// SetDefaults_Broker chooses our class and the system's configuration where a Broker says nothing, so that
// both are recorded from the start (eventing Broker Lifecycle).
func SetDefaults_Broker(b *Broker) {
	if b.Annotations[BrokerClassAnnotationKey] == "" {
		if b.Annotations == nil {
			b.Annotations = map[string]string{}
		}
		b.Annotations[BrokerClassAnnotationKey] = BrokerClassJetStream
	}
	if b.Spec.Config == nil {
		b.Spec.Config = &duckv1.KReference{}
	}
	b.Spec.Config.SetNamespace(b.Namespace)
	b.Spec.Delivery.SetDefaults(b.Namespace)
}
