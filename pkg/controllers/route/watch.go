package route

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
	servinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/serving/v1"
)

// Indexes, all by namespace/name.
const (
	// routesByConfiguration finds the Routes that depend on a Configuration.
	routesByConfiguration = "route-configurations"
	// revisionsByRoute finds the Revisions that list a Route as a referrer.
	revisionsByRoute = "revision-routes"
	// pendingByConfiguration finds the Revisions of a Configuration that no Route has referred to yet.
	pendingByConfiguration = "revision-pending"
)

// Controller returns the controller that runs r, and sets the listers, RevisionIndex and Queue.
func (r *Reconciler) Controller(informers servinginformers.Interface) (*reconciler.Controller, error) {
	routes, configurations, revisions := informers.Routes(), informers.Configurations(), informers.Revisions()
	for _, index := range []struct {
		informer cache.SharedIndexInformer
		name     string
		fn       cache.IndexFunc
	}{
		{routes.Informer(), routesByConfiguration, indexed(configurationsOf)},
		{revisions.Informer(), revisionsByRoute, indexed(routesOf)},
		{revisions.Informer(), pendingByConfiguration, indexed(pendingOf)},
	} {
		if err := reconciler.AddIndex(index.informer, index.name, index.fn); err != nil {
			return nil, err
		}
	}
	if err := revisionref.IndexRoutes(routes.Informer()); err != nil {
		return nil, err
	}
	r.Routes, r.Configurations, r.Revisions = routes.Lister(), configurations.Lister(), revisions.Lister()
	r.RevisionIndex = revisions.Informer().GetIndexer()
	controller := reconciler.New("route", r)
	r.Queue = controller
	r.Claims.Join(hostnames.Route, r.Participant())
	hosttls.Follow(certificatesKind, r.Certificates, r.CertManager, controller.Enqueue)
	index := routes.Informer().GetIndexer()
	if err := controller.Watch(routes.Informer(), reconciler.KeyOf); err != nil {
		return nil, err
	}
	if err := controller.Watch(configurations.Informer(), referring(index, routesByConfiguration)); err != nil {
		return nil, err
	}
	// Its Revisions list a deleted Route until it has been reconciled.
	byRevision := referring(index, revisionref.RoutesByRevision)
	err := controller.Watch(revisions.Informer(), func(obj metav1.Object) []types.NamespacedName {
		keys := byRevision(obj)
		if revision, ok := obj.(*servingv1.Revision); ok {
			for _, name := range routesOf(revision) {
				keys = append(keys, types.NamespacedName{Namespace: revision.Namespace, Name: name})
			}
		}
		return keys
	})
	if err != nil {
		return nil, err
	}
	if err := r.watchNamespaces(controller); err != nil {
		return nil, err
	}
	if r.Placeholders != nil {
		if err := r.Placeholders.Track(controller); err != nil {
			return nil, err
		}
	}
	return controller, nil
}

// EnqueueAll enqueues all Routes. Call it when settings change.
func (r *Reconciler) EnqueueAll() {
	routes, err := r.Routes.List(labels.Everything())
	if err != nil {
		klog.Background().Error(err, "Failed to list Routes")
		return
	}
	for _, route := range routes {
		r.Queue.Enqueue(keyOf(route))
	}
}

// indexed makes an index of the names in its own namespace that an object refers to.
func indexed[O metav1.Object](names func(O) []string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		o, ok := obj.(O)
		if !ok {
			return nil, nil
		}
		values := names(o)
		qualified := make([]string, 0, len(values))
		for _, name := range values {
			qualified = append(qualified, o.GetNamespace()+"/"+name)
		}
		return qualified, nil
	}
}

// referring returns a function that returns the keys of the Routes that an index has under an object's name.
func referring(index cache.Indexer, name string) func(obj metav1.Object) []types.NamespacedName {
	return func(obj metav1.Object) []types.NamespacedName {
		routes, err := reconciler.Indexed[*servingv1.Route](index, name, obj.GetNamespace()+"/"+obj.GetName())
		if err != nil {
			return nil
		}
		keys := make([]types.NamespacedName, 0, len(routes))
		for _, route := range routes {
			keys = append(keys, keyOf(route))
		}
		return keys
	}
}

func configurationsOf(route *servingv1.Route) []string {
	var names []string
	for _, t := range wanted(route) {
		if t.ConfigurationName != "" {
			names = append(names, t.ConfigurationName)
		}
	}
	return names
}

func pendingOf(revision *servingv1.Revision) []string {
	if revision.Labels[servingv1.RoutingStateLabelKey] != servingv1.RoutingStatePending {
		return nil
	}
	return []string{revision.Labels[servingv1.ConfigurationLabelKey]}
}
