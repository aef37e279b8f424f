// Package gc deletes the Revisions of Configurations that have not been used for long (serving 7.3-2).
package gc

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
	servingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/serving/v1"
	servinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/serving/v1"
	servinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// Reconciler deletes the unused Revisions of Configurations.
type Reconciler struct {
	Client         servingclient.ServingV1Interface
	Configurations servinglisters.ConfigurationLister
	// RevisionIndex has the index reconciler.ByController, RouteIndex revisionref.RoutesByRevision.
	RevisionIndex, RouteIndex cache.Indexer
	Clock                     clock.PassiveClock
	Settings                  func() *settings.Settings
}

// Controller returns the controller that runs r, and sets Configurations and the indexes. Call its RequeueAll when settings
// change, because other Revisions may exceed the limits then.
func (r *Reconciler) Controller(informers servinginformers.Interface) (*reconciler.Controller, error) {
	configurations, revisions, routes := informers.Configurations().Informer(), informers.Revisions().Informer(), informers.Routes().Informer()
	if err := reconciler.IndexByController(revisions); err != nil {
		return nil, err
	}
	if err := revisionref.IndexRoutes(routes); err != nil {
		return nil, err
	}
	r.Configurations = informers.Configurations().Lister()
	r.RevisionIndex, r.RouteIndex = revisions.GetIndexer(), routes.GetIndexer()
	controller := reconciler.New("revision-gc", r)
	if err := controller.Watch(configurations, reconciler.KeyOf); err != nil {
		return nil, err
	}
	if err := controller.Watch(revisions, reconciler.ControllerOf("Configuration")); err != nil {
		return nil, err
	}
	// A Route changes the routing state of a Revision before its own status, so the change of the Revision alone comes too
	// early: the Route still names it then.
	if err := controller.Watch(routes, r.configurationsOf); err != nil {
		return nil, err
	}
	return controller, nil
}

// configurationsOf returns the keys of the Configurations whose Revisions a Route names.
func (r *Reconciler) configurationsOf(obj metav1.Object) []types.NamespacedName {
	var keys []types.NamespacedName
	for _, name := range revisionref.RevisionsOf(obj) {
		if revision, exists, err := r.RevisionIndex.GetByKey(name); err == nil && exists {
			keys = append(keys, reconciler.ControllerOf("Configuration")(revision.(metav1.Object))...)
		}
	}
	return keys
}

// Reconcile deletes the Revisions that exceed the limits, and requeues the Configuration for when the next one does.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	configuration, ok, err := reconciler.Live(r.Configurations.Configurations(key.Namespace), key.Name)
	if err != nil || !ok || !request.Writes {
		return reconciler.Result{}, err
	}
	revisions, err := reconciler.ControlledBy[*servingv1.Revision](r.RevisionIndex, configuration.UID)
	if err != nil {
		return reconciler.Result{}, err
	}
	collectable, err := r.collectable(configuration, revisions)
	if err != nil {
		return reconciler.Result{}, err
	}
	remove, next := decide(collectable, r.Settings().GC, r.Clock.Now())
	var errs []error
	for _, revision := range remove {
		// The decision applies to the observed version only: a Route may have referred to the Revision since.
		err := r.Client.Revisions(key.Namespace).Delete(ctx, revision.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &revision.UID, ResourceVersion: &revision.ResourceVersion},
		})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete unused Revision %q: %w", revision.Name, err))
		}
	}
	return reconciler.Result{RequeueAfter: next}, errors.Join(errs...)
}

// collectable returns the Revisions that may be deleted: all except the current one, the latest ready one, Revisions that a
// Route needs, and Revisions that a user excluded.
func (r *Reconciler) collectable(configuration *servingv1.Configuration, revisions []*servingv1.Revision) ([]*servingv1.Revision, error) {
	if configuration.Status.ObservedGeneration != configuration.Generation {
		// The current Revision may be an older one after a rollback.
		return nil, nil
	}
	var collectable []*servingv1.Revision
	for _, revision := range revisions {
		switch {
		case revision.DeletionTimestamp != nil,
			revision.Name == configuration.Status.LatestCreatedRevisionName,
			revision.Name == configuration.Status.LatestReadyRevisionName,
			revision.Labels[servingv1.RoutingStateLabelKey] == servingv1.RoutingStateActive,
			revision.Annotations[servingv1.NoGCAnnotationKey] == "true":
			continue
		}
		routes, err := r.RouteIndex.ByIndex(revisionref.RoutesByRevision, revision.Namespace+"/"+revision.Name)
		if err != nil {
			return nil, err
		}
		if len(routes) == 0 {
			collectable = append(collectable, revision)
		}
	}
	return collectable, nil
}
