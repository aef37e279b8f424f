package app

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	namespacelifecycle "github.com/knative-apiserver/knative-apiserver/pkg/admission/namespace"
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

// contained returns the resources that a Namespace contains, owners before their dependents. Events come last: deleting
// other objects may record some.
func contained() []schema.GroupVersionResource {
	var all []schema.GroupVersionResource
	for _, resource := range garbage.Resources() {
		all = append(all, resource.GroupVersionResource)
	}
	return append(all, configMapResource, secretResource, serviceAccountResource, corev1.SchemeGroupVersion.WithResource("events"))
}

func (c *coreKinds) informer(resource schema.GroupVersionResource) cache.SharedIndexInformer {
	return c.informers.ForResource(resource).Informer()
}

// namespaces is the module of the controller of Namespaces. Before, it creates the Namespaces that the server always has, and the
// missing Namespaces of stored objects.
type namespaces struct {
	controllers
	core *coreKinds
}

func (c *coreKinds) newNamespaces() (*namespaces, error) {
	informers := namespace.Informers{Namespaces: c.informer(namespaceResource), ServiceAccounts: c.informer(serviceAccountResource)}
	r := &namespace.Reconciler{Kubernetes: c.kubernetes, Objects: c.metadata, Resources: contained(), Clock: clock.RealClock{}}
	controller, err := r.Controller(informers)
	if err != nil {
		return nil, err
	}
	return &namespaces{controllers{name: "namespaces", all: []*reconciler.Controller{controller}}, c}, nil
}

// Start implements lifecycle.Module.
func (m *namespaces) Start(ctx context.Context, fail func(error)) error {
	if err := namespace.Ensure(ctx, m.core.kubernetes, m.core.metadata, contained(), namespacelifecycle.Permanent()...); err != nil {
		return err
	}
	return m.controllers.Start(ctx, fail)
}
