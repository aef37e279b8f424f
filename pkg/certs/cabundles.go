package certs

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// InjectLabel marks, with the value "true", APIServices whose caBundle this server manages. Installations with an external
// certificate do not set it.
const InjectLabel = "knative-apiserver/inject-ca"

// fieldManager is the field manager of writes to the host cluster.
const fieldManager = "knative-apiserver"

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// CABundles maintains spec.caBundle of the APIServices that have InjectLabel and refer to this server's Service: it follows
// the authority, and immediately reverts changes by other clients. Only the leader writes.
type CABundles struct {
	m        *Manager
	client   dynamic.Interface
	informer cache.SharedIndexInformer
	queue    workqueue.TypedRateLimitingInterface[string]
}

// CABundles returns a controller of caBundles. Once it is called, a rotation proceeds only when all APIServices have the
// required caBundle. Call it once.
func (m *Manager) CABundles(client dynamic.Interface) *CABundles {
	b := &CABundles{
		m:      m,
		client: client,
		informer: dynamicinformer.NewFilteredDynamicInformer(client, apiServices, "", 0, cache.Indexers{},
			func(o *metav1.ListOptions) { o.LabelSelector = InjectLabel + "=true" }).Informer(),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 10*time.Second)),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bundles = b
	return b
}

// Run updates the APIServices until ctx is canceled.
func (b *CABundles) Run(ctx context.Context) {
	enqueue := func(object any) {
		if a, ok := object.(*unstructured.Unstructured); ok {
			b.queue.Add(a.GetName())
		}
	}
	// It fails only for stopped informers.
	_, _ = b.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, object any) { enqueue(object) },
	})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.informer.RunWithContext(ctx)
	}()
	go func() {
		<-ctx.Done()
		b.queue.ShutDown()
	}()
	if cache.WaitForCacheSync(ctx.Done(), b.informer.HasSynced) {
		for b.next(ctx) {
		}
	}
	<-stopped
}

// next processes one item of the queue. It returns false when the queue is shut down.
func (b *CABundles) next(ctx context.Context) bool {
	name, stop := b.queue.Get()
	if stop {
		return false
	}
	defer b.queue.Done(name)
	requeue, err := b.sync(ctx, name)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		b.m.options.Logger.Error(err, "Failed to update caBundle; retrying", "apiService", klog.KRef("", name))
		b.queue.AddRateLimited(name)
	default:
		b.queue.Forget(name)
		if requeue {
			b.queue.AddAfter(name, retry)
		}
	}
	return true
}

// sync updates the caBundle of an APIService. It returns requeue if another replica is responsible, in case this replica
// becomes the leader.
func (b *CABundles) sync(ctx context.Context, name string) (requeue bool, err error) {
	object, exists, err := b.informer.GetStore().GetByKey(name)
	if err != nil || !exists {
		return false, err
	}
	service, ok := object.(*unstructured.Unstructured)
	bundle := b.m.Bundle()
	if !ok || bundle == nil || !b.ours(service) || has(service, bundle) {
		return false, nil
	}
	if !b.m.options.Leading() {
		return true, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": service.GetResourceVersion()},
		// A caBundle is invalid in combination with insecureSkipTLSVerify.
		"spec": map[string]any{"caBundle": bundle, "insecureSkipTLSVerify": nil},
	})
	if err != nil {
		return false, fmt.Errorf("encode caBundle of APIService %q: %w", name, err)
	}
	_, err = b.client.Resource(apiServices).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
	switch {
	case apierrors.IsConflict(err):
		// The watch delivers the current object. The requeue handles the case that it has done so already.
		return true, nil
	case err != nil && !apierrors.IsNotFound(err):
		return false, fmt.Errorf("patch caBundle of APIService %q: %w", name, err)
	}
	return false, nil
}

// ours reports whether an APIService refers to this server's Service.
func (b *CABundles) ours(service *unstructured.Unstructured) bool {
	name, _, _ := unstructured.NestedString(service.Object, "spec", "service", "name")
	namespace, _, _ := unstructured.NestedString(service.Object, "spec", "service", "namespace")
	return name == b.m.options.Service && namespace == b.m.options.Namespace
}

// have reports whether all APIServices of this server are known to trust bundle.
func (b *CABundles) have(bundle []byte) bool {
	if !b.informer.HasSynced() {
		return false
	}
	for _, object := range b.informer.GetStore().List() {
		if service, ok := object.(*unstructured.Unstructured); ok && b.ours(service) && !has(service, bundle) {
			return false
		}
	}
	return true
}

// enqueueAll enqueues all APIServices.
func (b *CABundles) enqueueAll() {
	for _, name := range b.informer.GetStore().ListKeys() {
		b.queue.Add(name)
	}
}

// has reports whether the caBundle of an APIService equals bundle.
func has(service *unstructured.Unstructured, bundle []byte) bool {
	encoded, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle")
	current, err := base64.StdEncoding.DecodeString(encoded)
	return err == nil && bytes.Equal(current, bundle)
}
