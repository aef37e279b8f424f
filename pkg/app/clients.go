package app

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/garbage"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// clients are the clients of all controllers for the API.
type clients struct {
	config    *rest.Config
	versioned versioned.Interface
	informers externalversions.SharedInformerFactory
	recorder  record.EventRecorder
}

// newClients returns clients whose informers read the resources in stored without requests.
func newClients(config *rest.Config, stored []apiserver.Stored, recorder record.EventRecorder) (*clients, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of controllers: %w", err)
	}
	informers := externalversions.NewSharedInformerFactoryWithOptions(client, 0, externalversions.WithTransform(withoutManagedFields))
	for _, resource := range stored {
		informers.InformerFor(resource.New(), func(versioned.Interface, time.Duration) cache.SharedIndexInformer {
			return cache.NewSharedIndexInformer(resource, resource.New(), 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		})
	}
	return &clients{config: config, versioned: client, informers: informers, recorder: recorder}, nil
}

// withoutManagedFields removes the managed fields from cached objects, a third of their size. No controller reads them, and the
// server keeps the managed fields if a write omits them. It changes no memory that objects of apiserver.Stored share.
func withoutManagedFields(obj any) (any, error) {
	if object, ok := obj.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	return obj, nil
}

// garbageCollector returns the controller that deletes objects whose owners no longer exist. A host cluster has its own.
func (c *clients) garbageCollector(core *coreKinds) (*reconciler.Controller, error) {
	resources := append(garbage.Resources(),
		garbage.Resource{GroupVersionResource: configMapResource, Kind: "ConfigMap"},
		garbage.Resource{GroupVersionResource: secretResource, Kind: "Secret"},
		garbage.Resource{GroupVersionResource: serviceAccountResource, Kind: "ServiceAccount"},
	)
	return garbage.New(core.metadata, func(resource schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
		if resource.Group == corev1.GroupName {
			return core.informer(resource), nil
		}
		generic, err := c.informers.ForResource(resource)
		if err != nil {
			return nil, err
		}
		return generic.Informer(), nil
	}, resources)
}
