package v1

// SetDefaults_Service fills what a Service leaves out.
func SetDefaults_Service(s *Service) {
	s.Spec.Template.setDefaults()
	s.Spec.setTrafficDefaults("")
}
