package v1

// SetDefaults_Trigger fills what a Trigger leaves out and labels it with its Broker's name.
func SetDefaults_Trigger(t *Trigger) {
	if t.Spec.Filter == nil {
		t.Spec.Filter = &TriggerFilter{}
	}
	t.Spec.Subscriber.SetDefaults(t.Namespace)
	t.Spec.Delivery.SetDefaults(t.Namespace)
	if t.Spec.Broker != "" {
		if t.Labels == nil {
			t.Labels = map[string]string{}
		}
		t.Labels[BrokerLabelKey] = t.Spec.Broker
	}
}
