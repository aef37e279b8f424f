// Package destination resolves the references of Triggers, Subscriptions, Brokers and Channels into URLs, and enqueues the
// referrers when a referenced object changes (eventing Destination Resolution).
package destination

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// Options configure a Resolver.
type Options struct {
	// Informers have the kinds of this server.
	Informers externalversions.SharedInformerFactory
	// Host is the cluster that has all other kinds; nil without a host cluster.
	Host *Host
	// ClusterDomain is the DNS domain of the cluster, such as cluster.local.
	ClusterDomain string
	// AllowCrossNamespace lets objects refer to objects of other namespaces, and name their Services in URLs, without a
	// grant.
	AllowCrossNamespace bool
	// Network names the Services of this server in the host cluster.
	Network Network
}

// Resolver finds the addresses of destinations. It is safe for concurrent use.
type Resolver struct {
	own                 map[schema.GroupVersionKind]ownKind
	host                *hostKinds
	names               hostNames
	allowCrossNamespace bool
}

// New returns a Resolver. Call it before the informers start. It starts an informer of a host's kind when an object refers
// to the kind; these informers run until ctx is canceled.
func New(ctx context.Context, o Options) *Resolver {
	r := &Resolver{own: ownKinds(o.Informers), names: hostNames{o.Network, o.ClusterDomain}, allowCrossNamespace: o.AllowCrossNamespace}
	if o.Host != nil {
		r.host = newHostKinds(ctx, *o.Host)
	}
	return r
}

// Controller is the part of a reconciler.Controller that a Tracker needs.
type Controller interface {
	Watch(informer cache.SharedIndexInformer, keys func(obj metav1.Object) []types.NamespacedName) error
	Queue
}

// Track makes a controller reconcile the objects whose References are affected by a change. Call it once for each
// controller, before the controller and the informers start.
func (r *Resolver) Track(controller Controller) (*Tracker, error) {
	t := newTracker(r, controller)
	for kind, own := range r.own {
		err := controller.Watch(own.informer, func(obj metav1.Object) []types.NamespacedName {
			return t.referring(object{kind: kind.GroupKind(), name: types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}})
		})
		if err != nil {
			return nil, err
		}
	}
	if r.host != nil {
		r.host.subscribe(t)
	}
	return t, nil
}
