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

// ensureNamespaces creates the Namespaces that the server always has, and the missing Namespaces of stored objects.
func (c *coreKinds) ensureNamespaces(ctx context.Context) error {
	return namespace.Ensure(ctx, c.kubernetes, c.metadata, contained(), namespacelifecycle.Permanent()...)
}

func (c *coreKinds) namespaces() (*reconciler.Controller, error) {
	informers := namespace.Informers{Namespaces: c.informer(namespaceResource), ServiceAccounts: c.informer(serviceAccountResource)}
	r := &namespace.Reconciler{Kubernetes: c.kubernetes, Objects: c.metadata, Resources: contained(), Clock: clock.RealClock{}}
	return r.Controller(informers)
}

// StartNamespaces starts the controller of Namespaces alone, for a server that serves nothing but the API. It ends with ctx.
func StartNamespaces(ctx context.Context, config *rest.Config) error {
	core, err := newCoreKinds(config)
	if err != nil {
		return err
	}
	if err := core.ensureNamespaces(ctx); err != nil {
		return err
	}
	controller, err := core.namespaces()
	if err != nil {
		return err
	}
	core.informers.Start(ctx.Done())
	go controller.Run(ctx, workers)
	return nil
}
