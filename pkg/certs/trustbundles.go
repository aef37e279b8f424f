package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	informerscorev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

const (
	// TrustBundleLabelKey is the label of ConfigMaps with certificates to trust, with the value "true".
	TrustBundleLabelKey = "networking.knative.dev/trust-bundle"
	// maxTrustBundles bounds the bytes of all trust bundles.
	maxTrustBundles = 1 << 20
)

// TrustBundleOptions configure WatchTrustBundles. All are required.
type TrustBundleOptions struct {
	// Client is a client of the host cluster, Namespace the namespace of the ConfigMaps.
	Client    kubernetes.Interface
	Namespace string
	// Changed is called with all certificates in PEM before WatchTrustBundles returns, and after each change of them, not concurrently.
	Changed func(bundle []byte)
	// Report is called with the error of a ConfigMap that is ignored, and with nil when it is valid again or deleted, not concurrently.
	Report func(configMap string, uid types.UID, err error)
	Logger klog.Logger
}

// WatchTrustBundles follows the trust bundles of a namespace until ctx is canceled: the certificates in all keys of the ConfigMaps with
// TrustBundleLabelKey. A ConfigMap that holds anything else is ignored as a whole. It returns when the existing ones have been read, or with an
// error if ctx is canceled before or the server is not allowed to read them.
func WatchTrustBundles(ctx context.Context, o TrustBundleOptions) error {
	informer := informerscorev1.NewFilteredConfigMapInformer(o.Client, o.Namespace, 0, cache.Indexers{}, func(list *metav1.ListOptions) {
		list.LabelSelector = TrustBundleLabelKey + "=true"
	})
	err := informer.SetTransform(func(obj any) (any, error) {
		if configMap, ok := obj.(*corev1.ConfigMap); ok {
			configMap.ManagedFields, configMap.Annotations = nil, nil
		}
		return obj, nil
	})
	if err != nil {
		return fmt.Errorf("watch trust bundles in namespace %q: %w", o.Namespace, err)
	}
	b := &trustBundles{TrustBundleOptions: o, faults: map[string]trustFault{}}
	apply := func() { b.apply(informer.GetStore().List()) }
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(_ any, initial bool) {
			// The first ones are applied together.
			if !initial {
				apply()
			}
		},
		UpdateFunc: func(any, any) { apply() },
		DeleteFunc: func(any) { apply() },
	})
	if err != nil {
		return fmt.Errorf("watch trust bundles in namespace %q: %w", o.Namespace, err)
	}
	// An informer retries forever and only logs a missing role, so check the permission first.
	if _, err := o.Client.CoreV1().ConfigMaps(o.Namespace).List(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsForbidden(err) {
		return fmt.Errorf("read trust bundles in namespace %q: %w", o.Namespace, err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return fmt.Errorf("read trust bundles in namespace %q: %w", o.Namespace, context.Cause(ctx))
	}
	apply()
	return nil
}

// trustBundles are the trust bundles that were read.
type trustBundles struct {
	TrustBundleOptions
	// mu guards the fields below.
	mu      sync.Mutex
	current []byte
	applied bool
	// faults are the errors of ConfigMaps that were reported, by name.
	faults map[string]trustFault
}

// trustFault is the error of a ConfigMap.
type trustFault struct {
	uid     types.UID
	message string
}

// apply applies ConfigMaps, in the order of their names.
func (b *trustBundles) apply(objects []any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var configMaps []*corev1.ConfigMap
	for _, obj := range objects {
		if configMap, ok := obj.(*corev1.ConfigMap); ok {
			configMaps = append(configMaps, configMap)
		}
	}
	slices.SortFunc(configMaps, func(a, b *corev1.ConfigMap) int { return cmp.Compare(a.Name, b.Name) })
	var bundle []byte
	faults := map[string]trustFault{}
	for _, configMap := range configMaps {
		certificates, err := certificatesOf(configMap)
		if err == nil && len(bundle)+len(certificates) > maxTrustBundles {
			err = fmt.Errorf("trust bundles must have at most %d bytes of certificates together", maxTrustBundles)
		}
		if err == nil {
			bundle = append(bundle, certificates...)
			continue
		}
		fault := trustFault{configMap.UID, err.Error()}
		if faults[configMap.Name] = fault; b.faults[configMap.Name] != fault {
			b.Logger.Error(err, "Ignored trust bundle", "configMap", klog.KObj(configMap))
			b.Report(configMap.Name, configMap.UID, err)
		}
	}
	for name, fault := range b.faults {
		if _, remains := faults[name]; !remains {
			b.Report(name, fault.uid, nil)
		}
	}
	b.faults = faults
	if !b.applied || !bytes.Equal(bundle, b.current) {
		b.current, b.applied = bundle, true
		b.Changed(bundle)
	}
}

// certificatesOf returns the certificates in all keys of a ConfigMap in PEM.
func certificatesOf(configMap *corev1.ConfigMap) ([]byte, error) {
	values := map[string][]byte{}
	for key, value := range configMap.Data {
		values[key] = []byte(value)
	}
	maps.Copy(values, configMap.BinaryData)
	var all []*x509.Certificate
	for _, key := range slices.Sorted(maps.Keys(values)) {
		certificates, err := cert.ParseCertsPEM(values[key])
		if err != nil {
			return nil, fmt.Errorf("key '%s' must have certificates in PEM: %w", key, err)
		}
		all = append(all, certificates...)
	}
	return encode(all), nil
}
