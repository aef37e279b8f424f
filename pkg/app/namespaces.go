package app

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	namespacelifecycle "github.com/knative-apiserver/knative-apiserver/pkg/admission/namespace"
	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/garbage"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/namespace"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

var (
	namespaceResource      = corev1.SchemeGroupVersion.WithResource("namespaces")
	configMapResource      = corev1.SchemeGroupVersion.WithResource("configmaps")
	secretResource         = corev1.SchemeGroupVersion.WithResource("secrets")
	serviceAccountResource = corev1.SchemeGroupVersion.WithResource("serviceaccounts")
)

// coreKinds gives access to the kinds of core/v1 that the standalone server serves. Its informers hold metadata only.
type coreKinds struct {
	kubernetes kubernetes.Interface
	metadata   metadata.Interface
	informers  metadatainformer.SharedInformerFactory
}

func newCoreKinds(config *rest.Config) (*coreKinds, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of core/v1: %w", err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of metadata: %w", err)
	}
	informers := metadatainformer.NewSharedInformerFactoryWithOptions(objects, 0, metadatainformer.WithTransform(withoutManagedFields))
	return &coreKinds{kubernetes: client, metadata: objects, informers: informers}, nil
}

// newNamespacesInformer returns an informer of the Namespaces of the host cluster. It keeps only their names and annotations.
func newNamespacesInformer(config *rest.Config) (cache.SharedIndexInformer, error) {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of metadata: %w", err)
	}
	informer := metadatainformer.NewFilteredMetadataInformer(client, namespaceResource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	if err := informer.SetTransform(onlyAnnotations); err != nil {
		return nil, fmt.Errorf("watch Namespaces: %w", err)
	}
	return informer, nil
}

// onlyAnnotations removes everything but the name and the annotations of an object.
func onlyAnnotations(obj any) (any, error) {
	object, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return obj, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: object.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Name: object.Name, UID: object.UID, ResourceVersion: object.ResourceVersion, Annotations: object.Annotations,
	}}, nil
}

// contained returns the resources that a Namespace contains, owners before their dependents. Events come last, because deleting
// other objects may record Events.
func contained() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for _, resource := range garbage.Resources() {
		all = append(all, resource.GroupVersionResource)
	}
	return append(all, containedCore()...)
}

// containedCore returns the resources of core/v1 that a Namespace contains.
func containedCore() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{configMapResource, secretResource, serviceAccountResource, corev1.SchemeGroupVersion.WithResource("events")}
}

func (c *coreKinds) informer(resource schema.GroupVersionResource) cache.SharedIndexInformer {
	return c.informers.ForResource(resource).Informer()
}

// namespaces is the module of the controller of Namespaces. Before the controller starts, it creates the Namespaces that the
// server always has, and the missing Namespaces of stored objects.
type namespaces struct {
	controllers
	core *coreKinds
	// stored are the resources of the server's own groups.
	stored []apiserver.Stored
}

func (c *coreKinds) newNamespaces(stored []apiserver.Stored) (*namespaces, error) {
	informers := namespace.Informers{Namespaces: c.informer(namespaceResource), ServiceAccounts: c.informer(serviceAccountResource)}
	r := &namespace.Reconciler{Kubernetes: c.kubernetes, Objects: c.metadata, Resources: contained(), Clock: clock.RealClock{}}
	controller, err := r.Controller(informers)
	if err != nil {
		return nil, err
	}
	return &namespaces{controllers{name: "namespaces", all: []*reconciler.Controller{controller}}, c, stored}, nil
}

// Start implements lifecycle.Module.
func (m *namespaces) Start(ctx context.Context, fail func(error)) error {
	names := sets.New(namespacelifecycle.Permanent()...)
	for _, resource := range m.stored {
		some, err := resource.Namespaces(ctx)
		if err != nil {
			return fmt.Errorf("list namespaces of stored objects: %w", err)
		}
		names = names.Union(some)
	}
	if err := namespace.Ensure(ctx, m.core.kubernetes, m.core.metadata, containedCore(), sets.List(names)...); err != nil {
		return err
	}
	return m.controllers.Start(ctx, fail)
}
