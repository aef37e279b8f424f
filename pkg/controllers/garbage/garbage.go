// Package garbage deletes objects whose owners no longer exist. It replaces the garbage collector of a cluster in a standalone server
// (serving 7.0.1-4).
package garbage

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// absentOwners bounds the number of remembered owners that do not exist. UIDs are never reused.
const absentOwners = 1000

// Resource is a kind whose objects own others, or are owned.
type Resource struct {
	schema.GroupVersionResource
	Kind string
}

// Informers returns the informer of a resource, whose objects need metadata only.
type Informers func(schema.GroupVersionResource) (cache.SharedIndexInformer, error)

// Resources returns the kinds of the server's own groups.
func Resources() []Resource {
	return []Resource{
		{servingv1.SchemeGroupVersion.WithResource("services"), "Service"},
		{servingv1.SchemeGroupVersion.WithResource("configurations"), "Configuration"},
		{servingv1.SchemeGroupVersion.WithResource("revisions"), "Revision"},
		{servingv1.SchemeGroupVersion.WithResource("routes"), "Route"},
		{servingv1beta1.SchemeGroupVersion.WithResource("domainmappings"), "DomainMapping"},
		{eventingv1.SchemeGroupVersion.WithResource("brokers"), "Broker"},
		{eventingv1.SchemeGroupVersion.WithResource("triggers"), "Trigger"},
		{eventingv1alpha1.SchemeGroupVersion.WithResource("eventpolicies"), "EventPolicy"},
		{eventingv1alpha1.SchemeGroupVersion.WithResource("eventruns"), "EventRun"},
		{messagingv1.SchemeGroupVersion.WithResource("channels"), "Channel"},
		{messagingv1.SchemeGroupVersion.WithResource("subscriptions"), "Subscription"},
	}
}

// kind is a Resource and its objects, indexed by the UIDs of their owners.
type kind struct {
	Resource
	objects cache.Indexer
}

// Reconciler collects one object at a time. Its keys have the resource before the object's name:
// revisions.serving.knative.dev/hello-00001.
type Reconciler struct {
	client     metadata.Interface
	kinds      []*kind
	byResource map[string]*kind
	byKind     map[schema.GroupKind]*kind
	// absent has the UIDs of owners that the server did not find.
	absent *lru.Cache
}

// New returns the collector of the objects of some resources. Each resource must have an informer.
func New(client metadata.Interface, informerOf Informers, resources []Resource) (*reconciler.Controller, error) {
	r := newReconciler(client)
	controller := reconciler.New("garbage", r)
	informers := make([]cache.SharedIndexInformer, 0, len(resources))
	for _, resource := range resources {
		informer, err := informerOf(resource.GroupVersionResource)
		if err != nil {
			return nil, fmt.Errorf("watch %s for garbage: %w", resource.GroupResource(), err)
		}
		if err := reconciler.AddIndex(informer, byOwner, ownersOf); err != nil {
			return nil, err
		}
		r.add(resource, informer.GetIndexer())
		informers = append(informers, informer)
	}
	for i, informer := range informers {
		if err := controller.Watch(informer, r.concerned(r.kinds[i])); err != nil {
			return nil, err
		}
	}
	return controller, nil
}

func newReconciler(client metadata.Interface) *Reconciler {
	return &Reconciler{
		client:     client,
		byResource: map[string]*kind{},
		byKind:     map[schema.GroupKind]*kind{},
		absent:     lru.New(absentOwners),
	}
}

func (r *Reconciler) add(resource Resource, objects cache.Indexer) {
	k := &kind{Resource: resource, objects: objects}
	r.kinds = append(r.kinds, k)
	r.byResource[k.GroupResource().String()] = k
	r.byKind[schema.GroupKind{Group: k.Group, Kind: k.Kind}] = k
}

// key is the key of an object of a kind.
func (k *kind) key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: k.GroupResource().String() + "/" + name}
}

// split returns the kind and the name in a key, or nil.
func (r *Reconciler) split(key types.NamespacedName) (*kind, string) {
	resource, name, _ := strings.Cut(key.Name, "/")
	return r.byResource[resource], name
}

// concerned returns a function that returns the keys of the objects that a change of an object of a kind affects: the object itself,
// its dependents once it is deleted or waits for their deletion, and its owners while they wait for its deletion.
func (r *Reconciler) concerned(k *kind) func(metav1.Object) []types.NamespacedName {
	return func(obj metav1.Object) []types.NamespacedName {
		var keys []types.NamespacedName
		if len(obj.GetOwnerReferences()) > 0 || obj.GetDeletionTimestamp() != nil {
			keys = append(keys, k.key(obj.GetNamespace(), obj.GetName()))
		}
		if awaits(obj, metav1.FinalizerDeleteDependents) || k.get(obj.GetNamespace(), obj.GetName(), obj.GetUID()) == nil {
			r.eachDependent(obj.GetUID(), func(k *kind, dependent metav1.Object) bool {
				keys = append(keys, k.key(dependent.GetNamespace(), dependent.GetName()))
				return true
			})
		}
		for _, reference := range obj.GetOwnerReferences() {
			k := r.kindOf(reference)
			if k == nil {
				continue
			}
			if owner := k.get(obj.GetNamespace(), reference.Name, reference.UID); owner != nil && owner.GetDeletionTimestamp() != nil {
				keys = append(keys, k.key(obj.GetNamespace(), reference.Name))
			}
		}
		return keys
	}
}
