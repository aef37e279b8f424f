package hostservice

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	informerscorev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// NewInformer returns an informer of all core Services of the host cluster. Of Services without a controller it keeps only the name,
// which is not available until they are deleted.
func NewInformer(client kubernetes.Interface) (cache.SharedIndexInformer, error) {
	informer := informerscorev1.NewServiceInformer(client, metav1.NamespaceAll, 0, cache.Indexers{})
	if err := informer.SetTransform(trimmed); err != nil {
		return nil, fmt.Errorf("watch core Services: %w", err)
	}
	return informer, nil
}

func trimmed(obj any) (any, error) {
	service, ok := obj.(*corev1.Service)
	if !ok || metav1.GetControllerOfNoCopy(service) != nil {
		return obj, nil
	}
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: service.Namespace, Name: service.Name, UID: service.UID, ResourceVersion: service.ResourceVersion,
	}}, nil
}
