package v1

// SetNamespace fills an empty namespace with that of the object which holds the reference. References
// without a kind are placeholders and stay as they are.
func (r *KReference) SetNamespace(namespace string) {
	if r != nil && r.Namespace == "" && r.Kind != "" {
		r.Namespace = namespace
	}
}

// SetDefaults completes the reference of a destination held by an object in namespace.
func (d *Destination) SetDefaults(namespace string) {
	if d != nil {
		d.Ref.SetNamespace(namespace)
	}
}

// SetDefaults completes the dead letter sink of an object in namespace.
func (d *DeliverySpec) SetDefaults(namespace string) {
	if d != nil {
		d.DeadLetterSink.SetDefaults(namespace)
	}
}
