package v1

import "k8s.io/apimachinery/pkg/util/validation"

// SetDefaults_Trigger sets the defaults of a Trigger and labels it with its Broker's name.
func SetDefaults_Trigger(t *Trigger) {
	if t.Spec.Filter == nil {
		t.Spec.Filter = &TriggerFilter{}
	}
	t.Spec.Subscriber.SetDefaults(t.Namespace)
	t.Spec.Delivery.SetDefaults(t.Namespace)
	t.labelBroker()
}

// labelBroker sets the label with the Broker's name. Label values have at most 63 characters, a Broker's name 253; a Trigger with
// a longer name has no label rather than an invalid one.
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
