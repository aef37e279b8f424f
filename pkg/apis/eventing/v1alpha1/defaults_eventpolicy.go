package v1alpha1

// SetDefaults_EventPolicy sets the namespaces of the references to senders to the EventPolicy's.
func SetDefaults_EventPolicy(p *EventPolicy) {
	for i := range p.Spec.From {
		if ref := p.Spec.From[i].Ref; ref != nil && ref.Namespace == "" {
			ref.Namespace = p.Namespace
		}
	}
}
