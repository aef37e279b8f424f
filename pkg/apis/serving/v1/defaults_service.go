package v1

// SetDefaults_Service sets the defaults of a Service.
func SetDefaults_Service(s *Service) {
	s.Spec.Template.setDefaults()
	s.Spec.setTrafficDefaults("")
}
