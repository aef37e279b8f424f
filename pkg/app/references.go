package app

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/objects"
)

// storedObjects reads the objects that revisions refer to from the API, not from a cache: an instance that starts after a
// write must see it.
type storedObjects struct{ client kubernetes.Interface }

var _ objects.Reader = storedObjects{}

// ConfigMap returns a ConfigMap.
func (s storedObjects) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	return s.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Secret returns a Secret.
func (s storedObjects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return s.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// ServiceAccount returns an error if the ServiceAccount does not exist.
func (s storedObjects) ServiceAccount(ctx context.Context, namespace, name string) error {
	_, err := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	return err
}

// notify reports every change of an object that revisions may refer to.
func (c *coreKinds) notify(changed func(objects.Reference)) error {
	for kind, resource := range map[objects.Kind]schema.GroupVersionResource{
		objects.ConfigMap: configMapResource, objects.Secret: secretResource, objects.ServiceAccount: serviceAccountResource,
	} {
		report := func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if obj, ok := obj.(metav1.Object); ok {
				changed(objects.Reference{Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName()})
			}
		}
		_, err := c.informer(resource).AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: report, UpdateFunc: func(_, current any) { report(current) }, DeleteFunc: report,
		})
		if err != nil {
			return fmt.Errorf("watch %s for processes: %w", resource.GroupResource(), err)
		}
	}
	return nil
}
