package v1

// SetNamespace sets an empty namespace to the namespace of the object with the reference. References without a kind are
// placeholders and do not change.
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
