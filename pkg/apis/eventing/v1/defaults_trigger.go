package v1

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// SetDefaults_Trigger sets the defaults of a Trigger and labels it with its Broker's name.
func SetDefaults_Trigger(t *Trigger) {
	if t.Spec.Filter == nil {
		t.Spec.Filter = &TriggerFilter{}
	}
	t.Spec.Subscriber.SetDefaults(t.Namespace)
	t.Spec.Delivery.SetDefaults(t.Namespace)
	t.labelBroker()
}

// BrokerName returns the namespace and the name of the Broker of a Trigger. The name is empty if the Trigger names none.
func (t *Trigger) BrokerName() types.NamespacedName {
	if ref := t.Spec.BrokerRef; ref != nil {
		return types.NamespacedName{Namespace: cmp.Or(ref.Namespace, t.Namespace), Name: ref.Name}
	}
	return types.NamespacedName{Namespace: t.Namespace, Name: t.Spec.Broker}
}

// IsLinked reports whether the Broker of a Trigger is in another namespace.
func (t *Trigger) IsLinked() bool { return t.BrokerName().Namespace != t.Namespace }

// labelBroker sets the label with the Broker's name. Label values have at most 63 characters, a Broker's name 253; a Trigger with
// a longer name has no label rather than an invalid one.
func (t *Trigger) labelBroker() {
	broker := t.BrokerName().Name
	if broker == "" {
		return
	}
	if len(validation.IsValidLabelValue(broker)) > 0 {
		delete(t.Labels, BrokerLabelKey)
		return
	}
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	t.Labels[BrokerLabelKey] = broker
}
