package v1beta1

// SetDefaults_DomainMapping sets the namespace of the references to the DomainMapping's.
func SetDefaults_DomainMapping(m *DomainMapping) {
	m.Spec.Ref.SetNamespace(m.Namespace)
	for i := range m.Spec.Paths {
		m.Spec.Paths[i].Ref.SetNamespace(m.Namespace)
	}
}
