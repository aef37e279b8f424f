// Package revisionref holds what the controllers of several kinds have to know of references to Revisions.
package revisionref

import (
	"strconv"

	"k8s.io/client-go/tools/cache"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// Reasons of conditions of a Revision, or about one, that other kinds look for.
const (
	// ReasonRevisionNameTaken tells that the Revision that a template names is not one made from it.
	ReasonRevisionNameTaken = "RevisionNameTaken"
	// ReasonDeploying tells that a Revision's instances are starting, and nothing is known to be wrong.
	ReasonDeploying = "Deploying"
)

// Generation returns the generation of the Configuration that a Revision was made from, or 0 if its label does
// not say (serving 9.2.1-4).
func Generation(revision *servingv1.Revision) int64 {
	generation, err := strconv.ParseInt(revision.Labels[servingv1.ConfigurationGenerationLabelKey], 10, 64)
	if err != nil {
		return 0
	}
	return generation
}

// RoutesByRevision is the name of the index of Routes by the namespace/name of the Revisions that they name: those
// they are to lead to, and those they lead to.
const RoutesByRevision = "route-revisions"

// IndexRoutes has an informer of Routes keep that index. Several controllers may ask for it. Call it
// before the informer starts.
func IndexRoutes(informer cache.SharedIndexInformer) error {
	return reconciler.AddIndex(informer, RoutesByRevision, func(obj any) ([]string, error) { return RevisionsOf(obj), nil })
}

// RevisionsOf returns the namespace/name of each Revision that a Route names in spec or status, and nothing for other kinds.
func RevisionsOf(obj any) []string {
	route, ok := obj.(*servingv1.Route)
	if !ok {
		return nil
	}
	var revisions []string
	for _, traffic := range [][]servingv1.TrafficTarget{route.Spec.Traffic, route.Status.Traffic} {
		for _, target := range traffic {
			if target.RevisionName != "" {
				revisions = append(revisions, route.Namespace+"/"+target.RevisionName)
			}
		}
	}
	return revisions
}
