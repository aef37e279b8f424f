package app

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/garbage"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// workers is how many objects of a kind are reconciled at a time.
const workers = 16

// clients are what all controllers reach the API by.
type clients struct {
	config    *rest.Config
	versioned versioned.Interface
	informers externalversions.SharedInformerFactory
	recorder  record.EventRecorder
}

func newClients(config *rest.Config, recorder record.EventRecorder) (*clients, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the controllers' client: %w", err)
	}
	informers := externalversions.NewSharedInformerFactoryWithOptions(client, 0, externalversions.WithTransform(withoutManagedFields))
	return &clients{config: config, versioned: client, informers: informers, recorder: recorder}, nil
}

// withoutManagedFields takes from cached objects what no controller reads, and what is a third of them. The
// server keeps the managed fields of objects that are written without.
func withoutManagedFields(obj any) (any, error) {
	if object, ok := obj.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	return obj, nil
}

// garbageCollector deletes objects whose owners are gone, where no host cluster does.
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

// primed returns once controllers have reconciled all objects once that there are.
func primed(ctx context.Context, all ...*reconciler.Controller) error {
	for _, c := range all {
		select {
		case <-c.Primed():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
