package v1

import "k8s.io/utils/ptr"

// SetDefaults_Route sets the defaults of a Route. Without traffic targets, it follows the Configuration of the same name
// (serving 9.3.2-1).
func SetDefaults_Route(r *Route) {
	r.Spec.setTrafficDefaults(r.Name)
}

// setTrafficDefaults sends all traffic to the latest ready Revision by default, and sets latestRevision. Within a Service, the
// configuration is implied, and its name empty.
func (s *RouteSpec) setTrafficDefaults(configuration string) {
	if len(s.Traffic) == 0 {
		s.Traffic = []TrafficTarget{{ConfigurationName: configuration, Percent: ptr.To[int64](100)}}
	}
	for i := range s.Traffic {
		if t := &s.Traffic[i]; t.LatestRevision == nil {
			t.LatestRevision = ptr.To(t.RevisionName == "")
		}
	}
}
