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

// WatchConfigMaps takes over the ConfigMaps of a namespace whose names are Known, and again whenever they change, until
// ctx ends. It returns when those that there are have been taken over. Without a ConfigMap its defaults hold.
//
// A ConfigMap with a fault keeps the settings that it last had, which are the defaults at first; the log and
// reporter name the fault, once. The error says that ctx ended before the ConfigMaps could be read, or that the server
// may not read them.
func (s *Store) WatchConfigMaps(ctx context.Context, client kubernetes.Interface, namespace string, reporter Reporter) error {
	w := &configMapWatch{store: s, reports: newReports(reporter)}
	informer := informerscorev1.NewConfigMapInformer(client, namespace, 0, cache.Indexers{})
	if err := informer.SetTransform(onlySettings); err != nil {
		return fmt.Errorf("watching the settings in namespace %q: %w", namespace, err)
	}
	registration, err := informer.AddEventHandler(cache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool { return Known(nameOf(obj)) },
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    w.take,
			UpdateFunc: func(_, current any) { w.take(current) },
			DeleteFunc: w.drop,
		},
	})
	if err != nil {
		return fmt.Errorf("watching the settings in namespace %q: %w", namespace, err)
	}
	// An informer tries again for ever, and whoever forgot a role is told by none but the log.
	if _, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsForbidden(err) {
		return fmt.Errorf("reading the settings in namespace %q: %w", namespace, err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("reading the settings in namespace %q: %w", namespace, context.Cause(ctx))
	}
	return nil
}

// onlySettings keeps of other ConfigMaps of the namespace no more than that they are there.
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

// nameOf is the name of a ConfigMap, also of one that is gone.
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

// configMapWatch keeps a Store in step with ConfigMaps. Its methods are called one at a time.
type configMapWatch struct {
	store   *Store
	reports *reports
}

func (w *configMapWatch) take(obj any) {
	configMap := asConfigMap(obj)
	data := map[string]string{}
	maps.Copy(data, configMap.Data)
	w.update(configMap, data)
}

func (w *configMapWatch) drop(obj any) { w.update(asConfigMap(obj), nil) }

// update takes over the data of a ConfigMap, and reports its state.
func (w *configMapWatch) update(configMap *corev1.ConfigMap, data map[string]string) {
	name, uid := configMap.Name, configMap.UID
	w.reports.fault(name, uid, w.store.Update(map[string]map[string]string{name: data})[name])
	w.reports.unusedKeys(name, uid, Unused(name, data))
}
