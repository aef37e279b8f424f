package settings

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	informerscorev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// WatchConfigMaps applies the ConfigMaps of a namespace whose names are Known, whenever they change, until ctx is canceled. It
// returns when the existing ones have been applied. The settings of a missing ConfigMap have their defaults.
//
// An invalid ConfigMap keeps its last valid settings, initially the defaults. The log and reporter report the error once. It
// returns an error if ctx is canceled before the ConfigMaps are read, or if the server is not allowed to read them.
func (s *Store) WatchConfigMaps(ctx context.Context, client kubernetes.Interface, namespace string, reporter Reporter) error {
	w := &configMapWatch{store: s, reports: newReports(reporter)}
	informer := informerscorev1.NewConfigMapInformer(client, namespace, 0, cache.Indexers{})
	if err := informer.SetTransform(onlySettings); err != nil {
		return fmt.Errorf("watch settings in namespace %q: %w", namespace, err)
	}
	registration, err := informer.AddEventHandler(cache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool { return Known(nameOf(obj)) },
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    w.apply,
			UpdateFunc: func(_, current any) { w.apply(current) },
			DeleteFunc: w.drop,
		},
	})
	if err != nil {
		return fmt.Errorf("watch settings in namespace %q: %w", namespace, err)
	}
	// An informer retries forever and only logs a missing role, so check the permission first.
	if _, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsForbidden(err) {
		return fmt.Errorf("read settings in namespace %q: %w", namespace, err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("read settings in namespace %q: %w", namespace, context.Cause(ctx))
	}
	return nil
}

// onlySettings reduces other ConfigMaps of the namespace to their metadata.
func onlySettings(obj any) (any, error) {
	configMap, ok := obj.(*corev1.ConfigMap)
	if !ok {
		return obj, nil
	}
	configMap.ManagedFields = nil
	if !Known(configMap.Name) {
		configMap.Data, configMap.BinaryData, configMap.Annotations = nil, nil, nil
	}
	return configMap, nil
}

// nameOf returns the name of a ConfigMap, also of a deleted one.
func nameOf(obj any) string {
	if configMap := asConfigMap(obj); configMap != nil {
		return configMap.Name
	}
	return ""
}

func asConfigMap(obj any) *corev1.ConfigMap {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	configMap, _ := obj.(*corev1.ConfigMap)
	return configMap
}

// configMapWatch updates a Store from ConfigMaps. Its methods are not called concurrently.
type configMapWatch struct {
	store   *Store
	reports *reports
}

func (w *configMapWatch) apply(obj any) {
	configMap := asConfigMap(obj)
	data := map[string]string{}
	maps.Copy(data, configMap.Data)
	w.update(configMap, data)
}

func (w *configMapWatch) drop(obj any) { w.update(asConfigMap(obj), nil) }

// update applies the data of a ConfigMap, and reports its state.
func (w *configMapWatch) update(configMap *corev1.ConfigMap, data map[string]string) {
	name, uid := configMap.Name, configMap.UID
	w.reports.fault(name, uid, w.store.Update(map[string]map[string]string{name: data})[name])
	w.reports.unusedKeys(name, uid, Unused(name, data))
}
