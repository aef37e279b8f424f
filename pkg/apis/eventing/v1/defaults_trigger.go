package v1

import "k8s.io/apimachinery/pkg/util/validation"

// SetDefaults_Trigger fills what a Trigger leaves out and labels it with its Broker's name.
func SetDefaults_Trigger(t *Trigger) {
	if t.Spec.Filter == nil {
		t.Spec.Filter = &TriggerFilter{}
	}
	t.Spec.Subscriber.SetDefaults(t.Namespace)
	t.Spec.Delivery.SetDefaults(t.Namespace)
	t.labelBroker()
}

// labelBroker makes the Broker's name the value of its label. A name that no label can hold (they end at 63
// characters, a Broker's name at 253) leaves the Trigger without one rather than invalid.
func (t *Trigger) labelBroker() {
	if t.Spec.Broker == "" {
		return
	}
	if len(validation.IsValidLabelValue(t.Spec.Broker)) > 0 {
		delete(t.Labels, BrokerLabelKey)
		return
	}
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	t.Labels[BrokerLabelKey] = t.Spec.Broker
}
