package resources

import servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"

// Route returns a Service's Route (serving 7.1-1). Targets without a Revision follow the latest ready Revision of the
// Service's Configuration.
func Route(service *servingv1.Service) *servingv1.Route {
	route := &servingv1.Route{
		ObjectMeta: childMeta(service),
		Spec:       *service.Spec.RouteSpec.DeepCopy(),
	}
	for i := range route.Spec.Traffic {
		if target := &route.Spec.Traffic[i]; target.RevisionName == "" {
			target.ConfigurationName = service.Name
		}
	}
	// The server does the same, so that the stored object can be compared.
	servingv1.SetDefaults_Route(route)
	return route
}

// UpdateRoute returns a copy of a Service's existing Route with the desired state of the Service (serving 7.1-2,
// 7.1-5).
func UpdateRoute(existing *servingv1.Route, service *servingv1.Service) *servingv1.Route {
	desired := Route(service)
	updated := existing.DeepCopy()
	copyLabels(&updated.ObjectMeta, &desired.ObjectMeta)
	updated.Spec = desired.Spec
	return updated
}
