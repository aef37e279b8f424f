package v1

// SetDefaults_Subscription completes the references of a Subscription except its channel, which has no namespace
// field.
func SetDefaults_Subscription(s *Subscription) {
	s.Spec.Subscriber.SetDefaults(s.Namespace)
	s.Spec.Reply.SetDefaults(s.Namespace)
	s.Spec.Delivery.SetDefaults(s.Namespace)
}
