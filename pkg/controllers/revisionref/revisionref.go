// Package revisionref resolves references to Revisions, for the controllers of several kinds.
package revisionref

import (
	"strconv"

	"k8s.io/client-go/tools/cache"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// Reasons of conditions of a Revision, or about a Revision, that controllers of other kinds read.
const (
	// ReasonRevisionNameInUse means that the Revision that a template names was not created from it.
	ReasonRevisionNameInUse = "RevisionNameTaken"
	// ReasonDeploying means that a Revision's instances are starting, without a known fault.
	ReasonDeploying = "Deploying"
)

// Generation returns the generation of the Configuration that a Revision was created from, or 0 if it has no valid
// label (serving 9.2.1-4).
func Generation(revision *servingv1.Revision) int64 {
	generation, err := strconv.ParseInt(revision.Labels[servingv1.ConfigurationGenerationLabelKey], 10, 64)
	if err != nil {
		return 0
	}
	return generation
}

// RoutesByRevision is the name of the index of Routes by the namespace/name of the Revisions that they name in spec or status.
const RoutesByRevision = "route-revisions"

// IndexRoutes adds RoutesByRevision to an informer of Routes, unless it is present. Call it before the informer starts.
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
