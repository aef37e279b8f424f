package v1

// SetDefaults_Subscription completes the references of a Subscription. Its channel is left alone: it has no
// namespace field to fill.
func SetDefaults_Subscription(s *Subscription) {
	s.Spec.Subscriber.SetDefaults(s.Namespace)
	s.Spec.Reply.SetDefaults(s.Namespace)
	s.Spec.Delivery.SetDefaults(s.Namespace)
}
