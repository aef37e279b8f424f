package route

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// Participant returns the participation of Routes in the claims of host names.
func (r *Reconciler) Participant() hostnames.Participant {
	return hostnames.Participant{List: r.allClaims, Enqueue: func(key routing.Key) { r.Queue.Enqueue(key) }}
}

// allClaims returns the claims of all Routes.
func (r *Reconciler) allClaims(s *settings.Settings) ([]hostnames.Claim, error) {
	routes, err := r.Routes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	claims := make([]hostnames.Claim, 0, len(routes))
	for _, route := range routes {
		if route.DeletionTimestamp != nil {
			continue
		}
		named, err := r.addresses(route, s)
		if err != nil {
			return nil, err
		}
		claims = append(claims, claimOf(route, named))
	}
	return claims, nil
}

func ownerOf(key routing.Key) hostnames.Owner {
	return hostnames.Owner{Kind: hostnames.Route, Key: key}
}

func claimOf(route *servingv1.Route, a addresses) hostnames.Claim {
	return hostnames.Claim{
		Owner: ownerOf(keyOf(route)), Created: route.CreationTimestamp.Time, Hosts: a.names(), Held: held(&route.Status, a.hosts),
	}
}

// conflictsAnnotationKey in status lists the host names of the Route that another object serves, as JSON.
const conflictsAnnotationKey = servingv1.GroupName + "/hostname-conflicts"

// held returns the subset of host names that a Route serves according to its status, sorted: the host names of its
// URL, its address and its tags, without names that it has lost.
func held(status *servingv1.RouteStatus, hosts []host) []string {
	if status.Address == nil {
		// Never reconciled.
		return nil
	}
	var lost []string
	if list, found := status.Annotations[conflictsAnnotationKey]; found {
		if err := json.Unmarshal([]byte(list), &lost); err != nil {
			return nil
		}
	} else if c := status.Conditions.Get(servingv1.RouteConditionIngressReady); c != nil && c.Reason == ReasonHostnameConflict {
		// A release that did not record them wrote the status.
		return nil
	}
	urls := map[string]string{"": status.URL}
	for _, t := range status.Traffic {
		if t.Tag != "" {
			urls[t.Tag] = t.URL
		}
	}
	var names []string
	for _, h := range hosts {
		at, known := urls[h.tag]
		if !known || slices.Contains(lost, h.name) || !h.internal && !isAt(at, h.name) {
			continue
		}
		names = append(names, h.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// isAt reports whether the host of a URL is name.
func isAt(address, name string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Hostname() == name
}

// writeConflicts records the host names that other objects serve in a status.
func writeConflicts(status *servingv1.RouteStatus, lost map[string]hostnames.Owner) error {
	if len(lost) == 0 {
		delete(status.Annotations, conflictsAnnotationKey)
		return nil
	}
	data, err := json.Marshal(slices.Sorted(maps.Keys(lost)))
	if err != nil {
		return fmt.Errorf("encode lost host names: %w", err)
	}
	if status.Annotations == nil {
		status.Annotations = map[string]string{}
	}
	status.Annotations[conflictsAnnotationKey] = string(data)
	return nil
}

func keyOf(route *servingv1.Route) routing.Key {
	return routing.Key{Namespace: route.Namespace, Name: route.Name}
}
