package v1

import "k8s.io/utils/ptr"

// SetDefaults_Route fills what a Route leaves out. Without any traffic it follows the Configuration that
// has its own name (serving 9.3.2-1).
func SetDefaults_Route(r *Route) {
	r.Spec.setTrafficDefaults(r.Name)
}

// setTrafficDefaults sends everything to the latest ready revision when nothing is said, and completes
// latestRevision. Within a Service the configuration is implied, and its name empty.
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
