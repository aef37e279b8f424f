package domainmapping

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// Indexes of DomainMappings.
const (
	// byHost finds the DomainMappings of all namespaces with a host name, byParent those below a name.
	byHost, byParent = "mapping-host", "mapping-parent"
	// byTarget finds the DomainMappings that refer to a Service or Route, by namespace/name, and the DomainMappings that refer to
	// core Services, which may belong to any Route of the namespace, by namespace/.
	byTarget = "mapping-target"
)

// Controller returns the controller that runs r, and sets the listers and Queue.
func (r *Reconciler) Controller(informers externalversions.SharedInformerFactory) (*reconciler.Controller, error) {
	mappings, claims := informers.Serving().V1beta1().DomainMappings(), informers.Networking().V1alpha1().ClusterDomainClaims()
	services, routes := informers.Serving().V1().Services(), informers.Serving().V1().Routes()
	for name, fn := range indexers() {
		if err := reconciler.AddIndex(mappings.Informer(), name, fn); err != nil {
			return nil, err
		}
	}
	r.Mappings, r.DomainClaims, r.Services, r.Routes = mappings.Lister(), claims.Lister(), services.Lister(), routes.Lister()
	controller := reconciler.New("domainmapping", r)
	r.Queue = controller
	hosttls.Follow(certificatesKind, r.Certificates, r.CertManager, controller.Enqueue)
	r.Claims.Join(hostnames.DomainMapping, r.Participant())
	if err := controller.Watch(mappings.Informer(), reconciler.KeyOf); err != nil {
		return nil, err
	}
	index := mappings.Informer().GetIndexer()
	err := controller.Watch(claims.Informer(), func(obj metav1.Object) []types.NamespacedName {
		keys := found(index, byHost, obj.GetName())
		if networkingv1alpha1.IsWildcard(obj.GetAnnotations()) {
			keys = append(keys, found(index, byParent, obj.GetName())...)
		}
		return keys
	})
	if err != nil {
		return nil, err
	}
	for _, informer := range []cache.SharedIndexInformer{services.Informer(), routes.Informer()} {
		err := controller.Watch(informer, func(obj metav1.Object) []types.NamespacedName {
			return append(found(index, byTarget, obj.GetNamespace()+"/"+obj.GetName()), found(index, byTarget, obj.GetNamespace()+"/")...)
		})
		if err != nil {
			return nil, err
		}
	}
	return controller, nil
}

// EnqueueAll enqueues all DomainMappings. Call it when settings change.
func (r *Reconciler) EnqueueAll() {
	mappings, err := r.Mappings.List(labels.Everything())
	if err != nil {
		klog.Background().Error(err, "Failed to list DomainMappings")
		return
	}
	for _, mapping := range mappings {
		r.Queue.Enqueue(keyOf(mapping))
	}
}

func indexers() cache.Indexers {
	return cache.Indexers{
		byHost: func(obj any) ([]string, error) {
			mapping, ok := obj.(*servingv1beta1.DomainMapping)
			if !ok {
				return nil, fmt.Errorf("unexpected %T among DomainMappings", obj)
			}
			return []string{mapping.Name}, nil
		},
		byParent: func(obj any) ([]string, error) {
			mapping, ok := obj.(*servingv1beta1.DomainMapping)
			if !ok {
				return nil, fmt.Errorf("unexpected %T among DomainMappings", obj)
			}
			var parents []string
			for _, parent, found := strings.Cut(mapping.Name, "."); found; _, parent, found = strings.Cut(parent, ".") {
				parents = append(parents, parent)
			}
			return parents, nil
		},
		byTarget: func(obj any) ([]string, error) {
			mapping, ok := obj.(*servingv1beta1.DomainMapping)
			if !ok {
				return nil, fmt.Errorf("unexpected %T among DomainMappings", obj)
			}
			var targets []string
			add := func(ref *duckv1.KReference) {
				if kindOf(ref) == coreServiceKind {
					targets = append(targets, mapping.Namespace+"/")
				} else {
					targets = append(targets, mapping.Namespace+"/"+ref.Name)
				}
			}
			add(&mapping.Spec.Ref)
			for i := range mapping.Spec.Paths {
				add(&mapping.Spec.Paths[i].Ref)
			}
			slices.Sort(targets)
			return slices.Compact(targets), nil
		},
	}
}

// found returns the keys of the DomainMappings that an index has under a value.
func found(index cache.Indexer, name, value string) []types.NamespacedName {
	mappings, err := reconciler.Indexed[*servingv1beta1.DomainMapping](index, name, value)
	if err != nil {
		return nil
	}
	keys := make([]types.NamespacedName, 0, len(mappings))
	for _, mapping := range mappings {
		keys = append(keys, keyOf(mapping))
	}
	return keys
}
